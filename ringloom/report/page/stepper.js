// Draws one step. `state` has leg (a pass of a schedule), step and cut (a slice of heads); `facts`
// has a column per table, with an entry per leg. If both change together, draws once.
if (!state.drawing) {
  state.drawing = true
  Promise.resolve().then(() => { state.drawing = false; draw() })
}

function draw() {
  if (!facts.data.size) return
  const leg = Math.min(state.data.leg[0], facts.data.size.length - 1)
  const table = (name) => facts.data[name][leg]
  const [cuts, rows, columns, tall, wide, ranks, steps] = table("size")
  const step = Math.max(0, Math.min(state.data.step[0], steps - 1))
  const base = Math.min(state.data.cut[0], cuts - 1) * rows * columns
  const at = table("step"), who = table("rank"), live = table("live")
  paintTiles()
  const [across, down] = axes
  across.setv({start: 0, end: columns})
  down.setv({start: rows, end: 0})
  labels.data = numbers()
  fillPlaces()
  const ways = arrows(), crowded = ways.src.length > 512
  // Many arrows are thin lines without heads: otherwise they cover each other and take longer.
  messages.data = {...ways, width: ways.src.map(() => (crowded ? 1 : 2))}
  heads.data = crowded ? {x0: [], y0: [], x1: [], y1: []} : ways

  // Sets each pixel to the rank that computes it in this step, or to masked, coming or done.
  function paintTiles() {
    const image = table("image"), [masked, coming, done] = [-1, ranks, NaN]
    const {image: [shown], dw: [width], dh: [height]} = pixels.data
    let same = String(shown.shape) === String(image.shape) && width === columns && height === rows
    for (let i = 0, pixel = 0; i < rows * tall; i++) {
      const row = base + Math.floor(i / tall) * columns
      for (let j = 0; j < columns * wide; j++, pixel++) {
        const tile = row + Math.floor(j / wide), when = at[tile]
        const value = !live[pixel] || when < 0 ? masked
          : when === step ? who[tile] : when > step ? coming : done
        same &&= Object.is(shown[pixel], value)
        image[pixel] = value
      }
    }
    // The array is reused, so Bokeh's check for equality would find no change.
    const data = {image: [image], x: [0], y: [0], dw: [columns], dh: [rows]}
    if (!same) pixels.setv({data}, {check_eq: false})
  }

  // Places the rank on each tile of this step, if there is room: at the middle of the live part, and
  // smaller on a small tile that is partly masked.
  function numbers() {
    const named = {x: [], y: [], text: [], ink: [], size: []}
    const many = Math.max(rows, columns), roomy = many <= 20
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
      named.size.push(many > 8 && count < tall * wide ? "8px" : "12px")
    }
    return named
  }

  // Fills ranks that compute, and outlines the others.
  function fillPlaces() {
    const busy = table("busy"), colours = places.data.colour
    places.data = {
      ...places.data,
      fill: colours.map((c, r) => (busy[step * ranks + r] ? c : "rgba(127,127,127,0.15)")),
      ink: colours.map((c, r) => (busy[step * ranks + r] ? places.data.on[r] : "#7F7F7F")),
    }
  }

  // Returns an arrow per pair of ranks, shifted to the right so that both directions are visible.
  function arrows() {
    const ways = {x0: [], y0: [], x1: [], y1: [], src: [], dst: [], parts: []}, known = new Map()
    const when = table("at"), src = table("src"), dst = table("dst")
    const px = places.data.x, py = places.data.y, rim = ranks <= 24 ? 0.15 : 0.07
    for (let n = 0; n < when.length; n++) {
      if (when[n] !== step) continue
      const from = src[n], to = dst[n], pair = from * ranks + to
      if (known.has(pair)) { known.get(pair).push(n); continue }
      const dx = px[to] - px[from], dy = py[to] - py[from], parts = [n]
      const far = Math.hypot(dx, dy) || 1, ux = dx / far, uy = dy / far, aside = 0.025
      ways.x0.push(px[from] + ux * rim + uy * aside)
      ways.y0.push(py[from] + uy * rim - ux * aside)
      ways.x1.push(px[to] - ux * rim + uy * aside)
      ways.y1.push(py[to] - uy * rim - ux * aside)
      ways.src.push(from); ways.dst.push(to); ways.parts.push(parts)
      known.set(pair, parts)
    }
    return ways
  }
}
