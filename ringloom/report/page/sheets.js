// Bokeh writes the place of all that it draws into style sheets with each painting; one that says
// what it said before is left as it is, or the browser would work out all styles again.
function ringloomSheets() {
  const sheet = new (Bokeh.Models.get("InlineStyleSheet"))({css: ""}).underlying()
  const sheets = Object.getPrototypeOf(sheet), update = sheets._update
  if (!update || sheets.plain) return
  sheets.plain = update
  sheets._update = function (css) { if (this.el.textContent !== css) update.call(this, css) }
}
