// Waits for the page to stand, then lets its pictures follow the reader's light or dark.
(function begin() {
  const doc = window.Bokeh && Bokeh.documents[0]
  if (!doc || !doc.is_idle || !doc.get_model_by_name("facts")) { setTimeout(begin, 50); return }
  ringloomBars()
  ringloomSheets()
  ringloomFollow(doc)
  doc.get_model_by_name("state").properties.data.change.emit() // the server drew before we listened
  document.documentElement.dataset.ready = "yes"
})()
