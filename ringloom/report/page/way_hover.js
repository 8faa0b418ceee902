// The messages of the arrow under the pointer: tensors, blocks (runs shortened: 0-3+7), bytes.
const leg = Math.min(state.data.leg[0], facts.data.size.length - 1)
const table = (name) => facts.data[name][leg]
const parts = messages.data.parts[special_vars.index]

function blocks(n) {
  const start = table("blocks_start")[n], runs = []
  for (const block of [...table("blocks_values").slice(start, start + table("blocks_count")[n])].sort((a, b) => a - b)) {
    const last = runs.at(-1)
    if (last && block === last[1] + 1) last[1] = block
    else runs.push([block, block])
  }
  return runs.map(([a, b]) => (a === b ? `${a}` : `${a}-${b}`)).join("+")
}
const words = parts.map((n) => `${table("kinds")[table("kind")[n]]} ${blocks(n)}`)
const bytes = parts.reduce((sum, n) => sum + table("bytes")[n], 0)
return `${words.join("; ")}, ${bytes.toLocaleString("en")} bytes`
