// The controls of the page: which schedule, which heads, which step; and the zoom of all timelines.
(function begin() {
  const doc = window.Bokeh && Bokeh.documents[0]
  if (!doc) { setTimeout(begin, 20); return }
  ringloomFollow(doc)
  const find = (id) => document.getElementById(id)
  const state = doc.get_model_by_name("state"), facts = doc.get_model_by_name("facts")
  if (state) stepper()
  zoom(doc.get_model_by_name("seconds"))
  document.documentElement.dataset.ready = "yes"

  function stepper() {
    const [leg, cut, slider, said, play] = ["leg", "cut", "step", "said", "play"].map(find)
    let playing = 0
    function show() {
      const steps = Number(slider.max), step = Math.min(Number(slider.value), steps)
      state.data = {leg: [Number(leg.value)], step: [step - 1], cut: [Number(cut.value)]}
      said.textContent = facts.data.words[leg.value][step - 1] || "no attends, no transfers"
      slider.setAttribute("aria-valuetext", said.textContent)
    }
    function choose() {
      const heads = facts.data.heads[leg.value], size = facts.data.size[leg.value]
      cut.replaceChildren(...heads.map((name, n) => new Option(name, n)))
      find("heads-label").hidden = heads.length < 2
      find("heads-label").style.display = heads.length < 2 ? "none" : ""
      find("note").textContent = facts.data.note[leg.value]
      find("note").hidden = !facts.data.note[leg.value]
      slider.max = Math.max(1, size[6])
      show()
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
    leg.addEventListener("change", choose)
    cut.addEventListener("change", show)
    slider.addEventListener("input", show)
    find("back").addEventListener("click", () => move(-1))
    find("on").addEventListener("click", () => move(1))
    play.addEventListener("click", toggle)
    choose()
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
