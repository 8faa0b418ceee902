// The controls of the page: which schedule, which heads, which step; and the zoom of all timelines.
(function begin() {
  const doc = window.Bokeh && Bokeh.documents[0]
  if (!doc) { setTimeout(begin, 20); return }
  ringloomBars()
  ringloomSheets()
  ringloomFollow(doc)
  const find = (id) => document.getElementById(id)
  const state = doc.get_model_by_name("state"), facts = doc.get_model_by_name("facts")
  if (state) stepper()
  zoom(doc.get_model_by_name("seconds"))
  downloads()
  document.documentElement.dataset.ready = "yes"

  function stepper() {
    const [leg, cut, slider, said, play] = ["leg", "cut", "step", "said", "play"].map(find)
    let playing = 0
    function show(fromAddress) {
      const steps = Number(slider.max), step = Math.min(Number(slider.value), steps)
      state.data = {leg: [Number(leg.value)], step: [step - 1], cut: [Number(cut.value)]}
      said.textContent = facts.data.words[leg.value][step - 1] || "no attends, no transfers"
      slider.setAttribute("aria-valuetext", said.textContent)
      if (fromAddress !== true) history.replaceState(null, "", `#${encodeURI(facts.data.title[leg.value])}/${step}`)
    }
    // An address ends in #schedule/step.
    function follow() {
      const [name, step] = decodeURIComponent(location.hash.slice(1)).split("/")
      const place = facts.data.title.indexOf(name)
      if (place >= 0) { leg.value = place; choose(Number(step)) }
      return place >= 0
    }
    function choose(at) {
      const heads = facts.data.heads[leg.value], size = facts.data.size[leg.value]
      cut.replaceChildren(...heads.map((name, n) => new Option(name, n)))
      find("heads-label").hidden = heads.length < 2
      find("heads-label").style.display = heads.length < 2 ? "none" : ""
      find("note").textContent = facts.data.note[leg.value]
      find("note").hidden = !facts.data.note[leg.value]
      slider.max = Math.max(1, size[6])
      if (at > 0) slider.value = at
      show(at === 0)
    }
    function move(by, around) {
      const steps = Number(slider.max), now = Number(slider.value) + by
      slider.value = around && now > steps ? 1 : Math.max(1, Math.min(steps, now))
      show()
    }
    function toggle() {
      playing = playing ? clearInterval(playing) || 0 : setInterval(() => move(1, true), 900)
      play.textContent = playing ? "stop" : "play"
      play.setAttribute("aria-pressed", String(Boolean(playing)))
    }
    leg.addEventListener("change", () => choose())
    cut.addEventListener("change", () => show())
    slider.addEventListener("input", () => show())
    addEventListener("hashchange", follow)
    find("back").addEventListener("click", () => move(-1))
    find("on").addEventListener("click", () => move(1))
    play.addEventListener("click", toggle)
    if (!follow()) choose(0)
  }

  // Each picture as SVG, and its numbers as CSV.
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
        button.addEventListener("click", () => save(`${name}.${kind}`, write(view)))
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
    const sources = new Set(view.model.renderers.map((one) => one.data_source)) // memory: one a line
    const tables = [...sources].map((one) => one.data).filter((one) => String(Object.keys(one)) === String(names))
    const lines = tables.flatMap((table) => [...table[names[0]]].map((_, i) => names.map((name) => {
      const value = table[name][i]
      return typeof value === "number" ? value : quoted(value)
    }).join(",")))
    return [names.join(","), ...lines].join("\n") + "\n"
  }
  function save(name, text) {
    const link = document.createElement("a")
    link.href = URL.createObjectURL(new Blob([text], {type: name.endsWith("svg") ? "image/svg+xml" : "text/csv"}))
    link.download = name
    link.click()
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
