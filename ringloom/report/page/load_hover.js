// What the rank under the pointer attends in that round.
const [rank, round] = [special_vars.y, special_vars.x].map(Math.round)
const words = isNaN(value) ? "nothing to attend"
  : `${value.toLocaleString("en")} pairs x heads, ${(value / cells.data.mean[0]).toFixed(2)} times the mean`
return `rank ${rank}, round ${round + 1}: ${words}`
