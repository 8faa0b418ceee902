// The bytes that the rank of the row under the pointer sends to the rank of the column.
const [from, to] = [special_vars.y, special_vars.x].map(Math.round)
const power = Math.min(4, Math.floor(Math.log2(Math.max(1, value)) / 10))
const size = `${Number((value / 1024 ** power).toPrecision(3))} ${["B", "KiB", "MiB", "GiB", "TiB"][power]}`
const words = isNaN(value) ? "nothing" : `${size} (${value.toLocaleString("en")} bytes)`
return `rank ${from} to ${to}: ${words}`
