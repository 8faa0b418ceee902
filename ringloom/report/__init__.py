"""The report: facts of a comparison as numbers, pictures of them, and one HTML page.

facts/              tiles, messages, recorded runs              numpy only
pictures/           timeline, stepper, load, traffic, memory    facts -> bokeh
page.py summary.py  the page, from templates and scripts        pictures -> one HTML file
"""

from pathlib import Path

PAGE = Path(__file__).parent / "page"
SCRIPTS = "theme.js", "bars.js", "sheets.js", "steps.js", "save.js"  # of the report and explore


def asset(name: str, folder: Path = PAGE) -> str:
    """Returns the text of a file in `folder`."""
    return (folder / name).read_text(encoding="utf-8")
