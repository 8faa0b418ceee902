// Waits until the page is complete, then connects its controls.
(function begin() {
  const doc = window.Bokeh && Bokeh.documents[0]
  if (!doc || !doc.is_idle || !doc.get_model_by_name("facts")) { setTimeout(begin, 50); return }
  ringloomBars()
  ringloomSheets()
  ringloomFollow(doc)
  ringloomSteps(doc, false)
  const places = [...document.querySelectorAll("[data-control]")]
  asking(doc.get_model_by_name("asked"))
  judging()
  taking(doc.get_model_by_name("wanted"), doc.get_model_by_name("file"))
  copying()
  document.documentElement.dataset.ready = "yes"

  // Sends all entries to the server whenever one of them changes.
  function asking(asked) {
    addEventListener("change", (event) => {
      if (!event.target.closest("[data-control]")) return
      asked.data = Object.fromEntries(places.map((place) => [place.dataset.control, [entry(place)]]))
    })
  }

  // Asks the server for a file; it sends the name and the text.
  function taking(wanted, file) {
    for (const button of document.querySelectorAll("[data-take]")) {
      button.addEventListener("click", () => {
        wanted.data = {name: [button.dataset.take], at: [performance.now()]}
      })
    }
    file.properties.data.change.connect(() => ringloomSave(file.data.name[0], file.data.text[0]))
  }

  // Dims results and disables downloads while the controls differ from the entries that the results
  // belong to.
  function judging() {
    const shown = document.getElementById("shown")
    const judge = () => {
      const entries = JSON.parse(shown.textContent || "{}")
      const stale = places.some((place) => entry(place) !== entries[place.dataset.control])
      document.querySelector("main").classList.toggle("stale", stale)
      for (const part of document.querySelectorAll(".taken")) part.inert = stale
    }
    for (const kind of ["input", "change"]) addEventListener(kind, judge, true)
    new MutationObserver(judge).observe(shown.parentElement, {childList: true, subtree: true})
    judge()
  }
  function entry(place) {
    const field = place.querySelector("input, select")
    return field.type !== "checkbox" ? field.value : field.checked ? "on" : "off"
  }

  function copying() {
    for (const button of document.querySelectorAll("[data-copy]")) {
      button.addEventListener("click", async () => {
        const source = document.getElementById(button.dataset.copy)
        await navigator.clipboard.writeText(source ? source.textContent : location.href)
        document.getElementById("copied").textContent = button.textContent.replace("copy", "copied")
      })
    }
  }
})()
