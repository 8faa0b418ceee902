// Downloads a text as a file; its name determines the type.
function ringloomSave(name, text) {
  const types = {svg: "image/svg+xml", csv: "text/csv", json: "application/json"}
  const link = document.createElement("a")
  link.href = URL.createObjectURL(new Blob([text], {type: types[name.split(".").pop()] || "text/plain"}))
  link.download = name
  link.click()
}
