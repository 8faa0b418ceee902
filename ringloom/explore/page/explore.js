// Waits until the page is complete, then connects its controls.
(function begin() {
  const doc = window.Bokeh && Bokeh.documents[0]
  if (!doc || !doc.is_idle || !doc.get_model_by_name("facts")) { setTimeout(begin, 50); return }
  ringloomBars()
  ringloomSheets()
  ringloomFollow(doc)
  ringloomSteps(doc, false)
  const places = [...document.querySelectorAll("[data-control]")]
  sendEntries(doc.get_model_by_name("entries"))
  markStale()
  connectDownloads(doc.get_model_by_name("request"), doc.get_model_by_name("file"))
  connectCopies()
  document.documentElement.dataset.ready = "yes"

  // Sends all entries to the server whenever one of them changes.
  function sendEntries(entries) {
    addEventListener("change", (event) => {
      if (!event.target.closest("[data-control]")) return
      entries.data = Object.fromEntries(places.map((place) => [place.dataset.control, [entry(place)]]))
    })
  }

  // Requests a file from the server, which sends its name and text.
  function connectDownloads(request, file) {
    for (const button of document.querySelectorAll("[data-take]")) {
      button.addEventListener("click", () => {
        request.data = {name: [button.dataset.take], at: [performance.now()]}
      })
    }
    file.properties.data.change.connect(() => ringloomSave(file.data.name[0], file.data.text[0]))
  }

  // Dims results and disables downloads while the controls differ from the entries of the results.
  function markStale() {
    const shown = document.getElementById("shown")
    const update = () => {
      const entries = JSON.parse(shown.textContent || "{}")
      const stale = places.some((place) => entry(place) !== entries[place.dataset.control])
      document.querySelector("main").classList.toggle("stale", stale)
      for (const part of document.querySelectorAll(".taken")) part.inert = stale
    }
    for (const kind of ["input", "change"]) addEventListener(kind, update, true)
    new MutationObserver(update).observe(shown.parentElement, {childList: true, subtree: true})
    update()
  }
  function entry(place) {
    const field = place.querySelector("input, select")
    return field.type !== "checkbox" ? field.value : field.checked ? "on" : "off"
  }

  function connectCopies() {
    for (const button of document.querySelectorAll("[data-copy]")) {
      button.addEventListener("click", async () => {
        const source = document.getElementById(button.dataset.copy)
        await navigator.clipboard.writeText(source ? source.textContent : location.href)
        document.getElementById("copied").textContent = button.textContent.replace("copy", "copied")
      })
    }
  }
})()
