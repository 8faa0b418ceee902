// Describes the tile under the pointer, with the rank and step that compute it.
const leg = Math.min(state.data.leg[0], facts.data.size.length - 1)
const table = (name) => facts.data[name][leg]
const [cuts, rows, columns] = table("size")
const i = Math.min(rows - 1, Math.max(0, Math.floor(special_vars.y)))
const j = Math.min(columns - 1, Math.max(0, Math.floor(special_vars.x)))
const tile = i * columns + j
const place = Math.min(state.data.cut[0], cuts - 1) * rows * columns + tile
const when = table("step")[place]
const pairs = table("pairs")[tile]
const who = when < 0 ? "not computed: the mask allows no pair here"
  : `rank ${table("rank")[place]} in step ${when + 1}, ${pairs.toLocaleString("en")} pairs per head`
return `queries ${table("q_names")[i]}<br>keys ${table("kv_names")[j]}<br>${who}`
