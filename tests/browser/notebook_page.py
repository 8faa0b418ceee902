"""Tables of values in a notebook, with the style of Jupyter's tables."""

from collections.abc import Callable
from pathlib import Path

import pytest
from fits import misfits
from report_page import luminance

from conftest import Reader
from ringloom.comparison import Comparison, compare

# As of JupyterLab 4: .jp-RenderedHTMLCommon, and colours of its light and its dark theme.
PAGE = """<!DOCTYPE html><meta charset="utf-8"><style>
body { margin: 0; font: 14px/1.6 system-ui, sans-serif; background: #fff; color: #000000de; }
@media (prefers-color-scheme: dark) { body { background: #111; color: #fff; } }
main { padding: 5px 20px; overflow-x: auto; }
table { border-collapse: collapse; border-spacing: 0; font-size: 12px; table-layout: fixed;
  margin: 0 auto 1em 0; }
td, th { text-align: right; vertical-align: middle; padding: .5em; line-height: normal;
  white-space: normal; max-width: none; border: none; }
tr:nth-child(even) { background: #8881; }
</style><main>%s</main>"""
PAINT = """
return [...document.querySelectorAll("th, td, caption, p")].map((e) => [
  getComputedStyle(document.body).backgroundColor, getComputedStyle(e).color])
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_notebook_tables_fit_and_adopt_its_colours(
    reader: Callable[..., Reader], compared: Comparison, tmp_path: Path, scheme: str
) -> None:
    refused = compare(compared.work, 8, "h100", ["allgather:node=4", "usp:ulysses=3:ring=2"])
    values = compared, refused, compared.cases[0].prediction
    file, shown = tmp_path / "notebook.html", reader("desktop", scheme)
    file.write_text(PAGE % "".join(one._repr_html_() for one in values), encoding="utf-8")
    shown.driver.get(file.as_uri())
    assert misfits(shown) == []
    assert "cannot run" in shown.ask("return document.body.textContent")
    for paper, ink in shown.ask(PAINT):
        high, low = sorted((luminance(paper), luminance(ink)), reverse=True)
        assert (high + 0.05) / (low + 0.05) >= 7
