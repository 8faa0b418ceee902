// Sets the colours of pictures: light or dark as the reader prefers, light in print.
function ringloomPaint(doc, dark) {
  const paper = dark ? "#14181d" : "#ffffff", ink = dark ? "#e8ebee" : "#1b1f24"
  const faint = dark ? "#39424d" : "#d5dae0"
  const [coming, done] = dark ? ["#2c343d", "#524c4c"] : ["#dbe1e7", "#b4bcc5"]
  for (const model of doc._all_models.values()) {
    switch (model.type) {
      case "Figure": case "Plot":
        model.setv({background_fill_color: paper, outline_line_color: faint})
        break
      case "LinearAxis":
        model.setv({axis_label_text_color: ink, major_label_text_color: ink, axis_line_color: faint,
          major_tick_line_color: faint, minor_tick_line_color: faint,
          axis_label_text_font_style: "normal"})
        break
      case "ColorBar":
        model.setv({major_label_text_color: ink, title_text_color: ink, title_text_font_style: "normal",
          background_fill_color: null})
        break
      case "HBar": if (model.name === "idle") model.fill_color = dark ? "#46515d" : "#ccd3da"; break
      case "Text": if (model.name === "numbers") model.text_color = ink; break
      case "Grid": model.setv({grid_line_color: faint}); break
      case "LinearColorMapper":
        if (model.name === "ranks") model.setv({low_color: paper, high_color: coming, nan_color: done})
        // Larger amounts contrast more with the background; the smallest are still visible.
        if (model.name === "amounts") model.palette = dark ? model.tags.slice(51) : model.tags.slice(0, 205).reverse()
        break
    }
  }
}

function ringloomFollow(doc) {
  const dark = matchMedia("(prefers-color-scheme: dark)")
  const follow = () => ringloomPaint(doc, dark.matches)
  dark.addEventListener("change", follow)
  addEventListener("beforeprint", () => ringloomPaint(doc, false))
  addEventListener("afterprint", follow)
  follow()
}
