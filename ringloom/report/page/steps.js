// Connects the controls of schedule, heads and step to the model `state`, which draws the step.
// With `named`, the URL ends in #schedule/step.
function ringloomSteps(doc, named) {
  const state = doc.get_model_by_name("state"), facts = doc.get_model_by_name("facts")
  if (!state) return
  const find = (id) => document.getElementById(id)
  const [leg, cut, slider, said, play] = ["leg", "cut", "step", "said", "play"].map(find)
  let playing = 0, moved = false // true once the reader has selected a step
  function show(fromAddress) {
    const steps = Number(slider.max), step = Math.min(Number(slider.value), steps)
    state.data = {leg: [Number(leg.value)], step: [step - 1], cut: [Number(cut.value)]}
    said.textContent = facts.data.words[leg.value][step - 1] || "no attention, no transfers"
    slider.setAttribute("aria-valuetext", said.textContent)
    if (named && fromAddress !== true) history.replaceState(null, "", `#${encodeURI(facts.data.title[leg.value])}/${step}`)
  }
  function follow() {
    const [name, step] = decodeURIComponent(location.hash.slice(1)).split("/")
    const place = named ? facts.data.title.indexOf(name) : -1
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
    else if (!moved) slider.value = firstWork()
    show(at === 0)
  }
  // Returns the first step in which a rank computes: some schedules exchange blocks first.
  function firstWork() {
    const ranks = facts.data.size[leg.value][5]
    return 1 + Math.floor(Math.max(0, facts.data.busy[leg.value].indexOf(1)) / ranks)
  }
  function move(by, around) {
    const steps = Number(slider.max), now = Number(slider.value) + by
    moved = true
    slider.value = around && now > steps ? 1 : Math.max(1, Math.min(steps, now))
    show()
  }
  function toggle() {
    playing = playing ? clearInterval(playing) || 0 : setInterval(() => move(1, true), 900)
    play.textContent = playing ? "stop" : "play"
    play.setAttribute("aria-pressed", String(Boolean(playing)))
  }
  function begin() {
    leg.replaceChildren(...facts.data.title.map((name, n) => new Option(name, n)))
    if (!follow()) choose(0)
  }
  leg.addEventListener("change", () => choose())
  cut.addEventListener("change", () => show())
  slider.addEventListener("input", () => { moved = true; show() })
  addEventListener("hashchange", follow)
  find("back").addEventListener("click", () => move(-1))
  find("on").addEventListener("click", () => move(1))
  play.addEventListener("click", toggle)
  facts.properties.data.change.connect(begin)
  begin()
}
