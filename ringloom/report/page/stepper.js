// Draws one step: state {leg, step, cut}, facts a column per table with an entry per leg.
// Pixels hold the rank that attends now; what lies off that scale is masked, coming or done.
const leg = Math.min(state.data.leg[0], facts.data.size.length - 1)
const table = (name) => facts.data[name][leg]
const [cuts, rows, columns, tall, wide, ranks, steps] = table("size")
const step = Math.max(0, Math.min(state.data.step[0], steps - 1))
const cut = Math.min(state.data.cut[0], cuts - 1)
const at = table("step"), who = table("rank"), live = table("live"), image = table("image")
const [masked, coming, done] = [-1, ranks, NaN]
const base = cut * rows * columns

for (let i = 0; i < rows * tall; i++) {
  for (let j = 0; j < columns * wide; j++) {
    const pixel = i * columns * wide + j
    const tile = base + Math.floor(i / tall) * columns + Math.floor(j / wide)
    const when = at[tile]
    image[pixel] = !live[pixel] || when < 0 ? masked
      : when === step ? who[tile] : when > step ? coming : done
  }
}
pixels.data = {image: [image], x: [0], y: [0], dw: [columns], dh: [rows]}
const [across, down] = axes
across.setv({start: 0, end: columns})
down.setv({start: rows, end: 0})

// A number on each tile that is attended now, where there is room for it: on its live middle.
const named = {x: [], y: [], text: [], ink: []}
const roomy = Math.max(rows, columns) <= 20
for (let tile = 0; roomy && tile < rows * columns; tile++) {
  if (at[base + tile] !== step) continue
  const rank = who[base + tile], i = Math.floor(tile / columns), j = tile % columns
  let count = 0, x = 0, y = 0
  for (let a = i * tall; a < (i + 1) * tall; a++) {
    for (let b = j * wide; b < (j + 1) * wide; b++) {
      if (live[a * columns * wide + b]) { count++; y += a + 0.5; x += b + 0.5 }
    }
  }
  named.x.push(x / count / wide); named.y.push(y / count / tall)
  named.text.push(String(rank)); named.ink.push(places.data.on[rank])
}
labels.data = named

// Ranks that attend are filled, the others only outlined.
const busy = table("busy"), colours = places.data.colour
places.data = {
  ...places.data,
  fill: colours.map((c, r) => (busy[step * ranks + r] ? c : "rgba(127,127,127,0.15)")),
  ink: colours.map((c, r) => (busy[step * ranks + r] ? places.data.on[r] : "#7F7F7F")),
}

// An arrow per pair of ranks, a little to its right so that both ways can be seen.
const ways = {x0: [], y0: [], x1: [], y1: [], src: [], dst: [], words: []}
const when = table("at"), src = table("src"), dst = table("dst"), what = table("what")
const bytes = table("bytes"), px = places.data.x, py = places.data.y
const rim = ranks <= 24 ? 0.15 : 0.07
for (let n = 0; n < when.length; n++) {
  if (when[n] !== step) continue
  const dx = px[dst[n]] - px[src[n]], dy = py[dst[n]] - py[src[n]]
  const far = Math.hypot(dx, dy) || 1, ux = dx / far, uy = dy / far, aside = 0.025
  ways.x0.push(px[src[n]] + ux * rim + uy * aside)
  ways.y0.push(py[src[n]] + uy * rim - ux * aside)
  ways.x1.push(px[dst[n]] - ux * rim + uy * aside)
  ways.y1.push(py[dst[n]] - uy * rim - ux * aside)
  ways.src.push(src[n]); ways.dst.push(dst[n])
  ways.words.push(`${what[n]}, ${bytes[n].toLocaleString("en")} bytes`)
}
messages.data = ways
