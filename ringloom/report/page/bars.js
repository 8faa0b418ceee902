// Bars without outline are filled as they are: as a path each, as Bokeh fills them, they take far longer.
// One thinner than a pixel fills its pixel: as parts of pixels, the paper shows through many in a row.
// Where this Bokeh paints them in another way than the one known here, it goes on to do so.
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
