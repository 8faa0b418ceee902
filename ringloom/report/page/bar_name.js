// The name of the bar under the pointer, put together from the numbers that names.py keeps.
const table = (name) => words.data[name][0]
const n = special_vars.index
const list = (name) => {
  const start = table(`${name}_start`)[n]
  return [...table(`${name}_values`).slice(start, start + table(`${name}_count`)[n])].join(",")
}
const [begin, middle] = table("forms")[table("form")[n]]
return `${n < table("predicted") ? "predicted" : "measured"}: ${begin}${list("first")}${middle}${list("second")}`
