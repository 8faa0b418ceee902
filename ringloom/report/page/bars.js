// Fills bars without outline as rectangles: Bokeh fills a path for each, which takes far longer.
// A bar thinner than a pixel fills the pixel: otherwise the background shows through many in a row.
// If this version of Bokeh paints bars differently, its own code is used.
function ringloomBars() {
  const bars = Bokeh.Models.get("HBar").prototype.default_view.prototype, painted = bars._paint
  if (!painted || bars.plain) return
  bars.plain = painted
  bars._paint = function (ctx, indices, data) {
    const {sleft, sright, stop, sbottom} = {...this, ...data}, {fill, hatch, line} = this.visuals
    if (!sleft || !stop || !fill.set_vectorize || hatch.doit || line.doit) {
      painted.call(this, ctx, indices, data)
      return
    }
    const colours = this.fill_color
    let colour = null
    for (const i of indices) {
      if (colours.get(i) !== colour) { fill.set_vectorize(ctx, i); colour = colours.get(i) }
      const wide = sright[i] - sleft[i], thin = 0 < wide && wide < 1
      ctx.fillRect(thin ? Math.floor(sleft[i]) : sleft[i], stop[i], thin ? 1 : wide, sbottom[i] - stop[i])
    }
  }
}
