// Fills bars without outline as rectangles, which is far faster than Bokeh's path for each bar. A
// bar thinner than a pixel fills the pixel, because the background would show through many such
// bars. Other versions of Bokeh keep their own code.
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
