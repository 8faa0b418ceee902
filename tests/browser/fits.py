"""Finds texts of a page that are cut off, overlap, or leave the page."""

from conftest import Reader

# Checks lines of text rather than elements, in shadow trees too.
MISFITS = """
const UNSEEN = "option, script, style, noscript, svg, .noUi-origin"
const wide = document.documentElement.clientWidth, lines = [], faults = []
function visit(root, clips) {
  for (const node of root.childNodes) {
    if (node.nodeType === Node.TEXT_NODE && node.textContent.trim()) {
      const range = document.createRange()
      range.selectNodeContents(node)
      for (const box of range.getClientRects())
        if (box.width > 1 && box.height > 1) lines.push({node, box, clips})
    } else if (node.nodeType === Node.ELEMENT_NODE) {
      const look = getComputedStyle(node)
      if (look.display === "none" || look.visibility === "hidden" || look.opacity === "0") continue
      if (look.clipPath !== "none" || node.matches(UNSEEN)) continue
      if (node.matches("details:not([open]) > :not(summary)")) continue
      const inner = look.overflowX === "visible" ? clips : [...clips, node]
      if (node.shadowRoot) visit(node.shadowRoot, inner)
      visit(node, inner)
    }
  }
}
visit(document.querySelector(arguments[0]), [])
const say = ({node}) => node.textContent.trim().slice(0, 60)
for (const line of lines) {
  if (line.box.right > wide + 1 || line.box.left < -1) faults.push(`leaves the page: ${say(line)}`)
  for (const clip of line.clips) {
    const {left, right} = clip.getBoundingClientRect()
    if (line.box.right > right + 1 || line.box.left < left - 1)
      faults.push(`is cut off: ${say(line)}`)
  }
}
lines.sort((a, b) => a.box.top - b.box.top)
lines.forEach((one, n) => {
  for (let m = n + 1; m < lines.length && lines[m].box.top < one.box.bottom - 3; m++) {
    const other = lines[m], a = one.box, b = other.box
    const x = Math.min(a.right, b.right) - Math.max(a.left, b.left)
    const y = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top)
    if (one.node !== other.node && x > 2 && y > 5) faults.push(`${say(one)} lies on ${say(other)}`)
  }
})
return [lines.length, faults]
"""


def misfits(page: Reader, within: str = "main") -> list[str]:
    """Returns a message for each line of text that is cut off, overlaps or leaves the page."""
    scroll, client = page.ask(
        "return [document.documentElement.scrollWidth, document.documentElement.clientWidth]"
    )
    lines, faults = page.ask(MISFITS, within)
    assert lines > 10, "no text was checked"
    return [*faults, *(["the page scrolls sideways"] if scroll > client else [])]
