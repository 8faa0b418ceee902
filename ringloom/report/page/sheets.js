// Keeps unchanged style sheets: Bokeh rewrites all of them whenever it paints, after which the
// browser computes all styles again.
function ringloomSheets() {
  const sheet = new (Bokeh.Models.get("InlineStyleSheet"))({css: ""}).underlying()
  const sheets = Object.getPrototypeOf(sheet), update = sheets._update
  if (!update || sheets.plain) return
  sheets.plain = update
  sheets._update = function (css) { if (this.el.textContent !== css) update.call(this, css) }
}
