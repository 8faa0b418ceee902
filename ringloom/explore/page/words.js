// Texts go where they belong in the page; those that stay are left alone.
for (const [id, [html]] of Object.entries(cb_obj.data)) {
  const place = document.getElementById(id)
  if (place.said !== html) { place.innerHTML = html; place.said = html }
}
