// The work of the rank under the pointer in that round.
const [rank, round] = [special_vars.y, special_vars.x].map(Math.round)
const words = isNaN(value) ? "idle"
  : `${value.toLocaleString("en")} pairs x heads, ${(value / cells.data.mean[0]).toFixed(2)}x the average`
return `rank ${rank}, round ${round + 1}: ${words}`
