"""The report: facts of a comparison as numbers, pictures of them, and one HTML page.

facts/              tiles, messages, recorded runs                    numpy only
pictures/           timeline, stepper, load, traffic, memory          facts -> bokeh
summary.py page.py  templates and scripts in page/                    pictures -> one HTML file
"""

from pathlib import Path

PAGE = Path(__file__).parent / "page"
SCRIPTS = "theme.js", "bars.js", "sheets.js", "steps.js", "save.js"  # of all pages


def asset(name: str, folder: Path = PAGE) -> str:
    """Returns the text of a file in a folder, by default the report's `page`."""
    return (folder / name).read_text(encoding="utf-8")
