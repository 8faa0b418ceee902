// Writes each changed text into its element, and unfolds options with errors.
for (const [id, [html]] of Object.entries(cb_obj.data)) {
  const place = document.getElementById(id)
  if (place.said !== html) { place.innerHTML = html; place.said = html }
  if (html && id.startsWith("wrong-")) place.closest("details")?.setAttribute("open", "")
}
