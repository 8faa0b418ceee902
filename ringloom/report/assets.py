"""asset(name)   a script, style or template of the page, as text."""

from pathlib import Path

PAGE = Path(__file__).parent / "page"


def asset(name: str, folder: Path = PAGE) -> str:
    """Returns the text of a file of a folder, by default of the report's `page`."""
    return (folder / name).read_text(encoding="utf-8")
