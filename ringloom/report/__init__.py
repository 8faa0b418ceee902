"""The report: facts of a comparison as plain numbers, pictures of them, and one page.

facts/              tiles, messages, spans, loads ...    numpy only
pictures/           timeline, stepper, load, traffic, memory          facts -> bokeh
summary.py page.py  templates and scripts in page/                    pictures -> one HTML file
"""

from pathlib import Path

PAGE = Path(__file__).parent / "page"
SCRIPTS = "theme.js", "bars.js", "sheets.js", "steps.js", "save.js"  # of all pages


def asset(name: str, folder: Path = PAGE) -> str:
    """Returns the text of a file of a folder, by default of the report's `page`."""
    return (folder / name).read_text(encoding="utf-8")
