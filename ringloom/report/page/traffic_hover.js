// Describes the bytes that the ranks of the row send to the ranks of the column.
const cell = cells.data.cell[0]
const [from, to] = [special_vars.y, special_vars.x].map((at) => {
  const first = cell * Math.floor((at + 0.5) / cell)
  return cell > 1 ? `${first}-${first + cell - 1}` : first
})
const power = Math.min(4, Math.floor(Math.log2(Math.max(1, value)) / 10))
const size = `${Number((value / 1024 ** power).toPrecision(3))} ${["B", "KiB", "MiB", "GiB", "TiB"][power]}`
const words = isNaN(value) ? "nothing" : `${size} (${value.toLocaleString("en")} bytes)`
return `rank ${from} to ${to}: ${words}`
