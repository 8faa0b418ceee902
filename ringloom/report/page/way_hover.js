// Describes the messages of the arrow under the pointer: tensors, blocks, bytes.
const leg = Math.min(state.data.leg[0], facts.data.size.length - 1)
const table = (name) => facts.data[name][leg]
const parts = messages.data.parts[special_vars.index]
const bytes = parts.reduce((sum, n) => sum + table("bytes")[n], 0)
return `${parts.map((n) => table("sent")[n]).join("; ")}, ${bytes.toLocaleString("en")} bytes`
