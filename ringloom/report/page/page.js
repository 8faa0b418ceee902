// Connects the controls of the page: steps, zoom of all timelines, downloads.
(function begin() {
  const doc = window.Bokeh && Bokeh.documents[0]
  if (!doc) { setTimeout(begin, 20); return }
  ringloomBars()
  ringloomSheets()
  ringloomFollow(doc)
  ringloomSteps(doc, true)
  zoom(doc.get_model_by_name("seconds"))
  downloads()
  document.documentElement.dataset.ready = "yes"

  // Adds buttons that save each picture as SVG and its numbers as CSV.
  function downloads() {
    for (const view of Bokeh.index) {
      const place = view.el.closest("figure")
      if (!place) continue
      const name = (place.getAttribute("aria-label") || "picture").replaceAll(" ", "-").toLowerCase()
      const row = document.createElement("span")
      row.className = "take"
      for (const [kind, write] of [["svg", svg], ["csv", csv]]) {
        const button = document.createElement("button")
        button.type = "button"
        button.textContent = kind.toUpperCase()
        button.setAttribute("aria-label", `${place.getAttribute("aria-label")} as ${button.textContent}`)
        button.addEventListener("click", () => ringloomSave(`${name}.${kind}`, write(view)))
        row.append(button)
      }
      place.append(row)
    }
  }
  function svg(view) { return view.export("svg").ctx.get_serialized_svg(true) }
  function csv(view) {
    const {data} = view.model.renderers[0].data_source, [image] = data.image || []
    if (image) {
      const [rows, columns] = image.shape, lines = ["row,column,value"]
      for (let i = 0; i < rows * columns; i++) {
        if (!isNaN(image[i])) lines.push(`${Math.floor(i / columns)},${i % columns},${image[i]}`)
      }
      return lines.join("\n") + "\n"
    }
    const names = Object.keys(data), quoted = (word) => `"${String(word).replaceAll('"', '""')}"`
    const sources = new Set(view.model.renderers.map((one) => one.data_source)) // memory: one per line
    const tables = [...sources].map((one) => one.data).filter((one) => String(Object.keys(one)) === String(names))
    const lines = tables.flatMap((table) => [...table[names[0]]].map((_, i) => names.map((name) => {
      const value = table[name][i]
      return typeof value === "number" ? value : quoted(value)
    }).join(",")))
    return [names.join(","), ...lines].join("\n") + "\n"
  }

  function zoom(axis) {
    if (!axis) return
    const [first, last] = [axis.start, axis.end]
    const factors = {left: [-0.25, 1], right: [0.25, 1], in: [0, 0.5], out: [0, 2]}
    for (const button of document.querySelectorAll("[data-zoom]")) {
      button.addEventListener("click", () => {
        const [shift, factor] = factors[button.dataset.zoom] || [0, 0]
        const wide = axis.end - axis.start, middle = (axis.start + axis.end) / 2 + shift * wide
        const half = Math.min(wide * factor, last - first) / 2
        const start = Math.max(first, Math.min(middle - half, last - 2 * half))
        axis.setv(factor ? {start, end: start + 2 * half} : {start: first, end: last})
      })
    }
  }
})()
