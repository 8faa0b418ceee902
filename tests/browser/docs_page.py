"""Pages of the documentation on a desktop and a phone: no snippet, table or picture is cut off."""

from collections.abc import Callable

import pytest
from fits import misfits

from conftest import Reader
from repository import ROOT

BUILT = ROOT / "build/docs"
PAGES = sorted(BUILT.rglob("*.html"))
OURS = [page for page in PAGES if page.stem not in ("genindex", "search")]
if not OURS:
    pytest.skip("no pages in build/docs: make docs builds them", allow_module_level=True)

LOST = """
return [...document.querySelectorAll("article img")].filter((image) =>
  !image.naturalWidth || image.getBoundingClientRect().right > innerWidth).map((image) => image.src)
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_page_fits_a_desktop(reader: Callable[..., Reader], scheme: str) -> None:
    shown = reader("desktop", scheme)
    faults = list[tuple[str, list[str]]]()
    for page in OURS:
        shown.driver.get(page.as_uri())
        if wrong := [*misfits(shown, "article"), *shown.ask(LOST)]:
            faults.append((page.stem, wrong))
    assert faults == []


WIDER = """
const page = document.documentElement
const faults = page.scrollWidth > page.clientWidth ? ["the page"] : []
for (const box of document.querySelectorAll("article pre, article table")) {
  const held = box.closest("pre, .table-wrapper"), look = held && getComputedStyle(held)
  if (box.matches("pre") && look.whiteSpace !== "pre") faults.push(`wraps: ${box.outerHTML}`)
  if (box.scrollWidth <= box.clientWidth + 1) continue
  if (!held || look.overflowX !== "auto") faults.push(box.outerHTML)
}
return faults
"""


def test_on_a_phone_pictures_shrink_and_code_scrolls_unbroken(
    reader: Callable[..., Reader],
) -> None:
    shown = reader("phone")
    faults = list[tuple[str, list[str]]]()
    for page in OURS:
        shown.driver.get(page.as_uri())
        if wider := [*shown.ask(WIDER), *shown.ask(LOST)]:
            faults.append((page.stem, wider))
    assert faults == []


def test_the_sidebar_has_four_groups(reader: Callable[..., Reader]) -> None:
    shown = reader()
    shown.driver.get((BUILT / "index.html").as_uri())
    captions = "return [...document.querySelectorAll('.sidebar-tree .caption')].map("
    groups = shown.ask(f"{captions}(e) => e.textContent.trim())")
    assert groups == ["Use", "Extend", "Reference", "Lessons"]


def test_commands_have_a_copy_button_and_outputs_have_none(
    reader: Callable[..., Reader],
) -> None:
    shown = reader()
    shown.driver.get((BUILT / "how-to/choose.html").as_uri())
    kinds = "return [...document.querySelectorAll('.highlight:has(.copybtn)')].map((e) =>"
    copied = shown.wait(f"{kinds} e.parentElement.className).join().replaceAll('notranslate', '')")
    assert "highlight-console" in copied
    assert "highlight-text" not in copied


MOVING = "return document.querySelectorAll('animate, animateTransform, set').length"
OUTSIDE = """
const picture = document.documentElement, [width, height] =
  ["width", "height"].map((side) => picture[side].baseVal.value)
const texts = [...picture.querySelectorAll("text")].map((one) => [one.textContent, one.getBBox()])
const inside = (box) => Math.min(box.x, box.y) >= 0 &&
  box.x + box.width <= width && box.y + box.height <= height
return [texts.length, texts.filter(([, box]) => !inside(box)).map(([text]) => text)]
"""


def test_pictures_are_static_and_cut_off_no_text(reader: Callable[..., Reader]) -> None:
    shown, faults, texts = reader(), dict[str, list[str]](), 0
    for picture in sorted((ROOT / "docs/pictures").glob("*.svg")):
        shown.driver.get(picture.as_uri())
        assert not shown.driver.execute_script(MOVING), picture  # complete as soon as it is loaded
        count, outside = shown.driver.execute_script(OUTSIDE)
        texts += count
        if outside:
            faults[picture.stem] = outside
    assert texts > 100
    assert faults == {}
