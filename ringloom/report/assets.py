"""asset(name)   a script, style or template of the page, as text."""

from pathlib import Path

PAGE = Path(__file__).parent / "page"


def asset(name: str) -> str:
    """Returns the text of a file of the folder `page`."""
    return (PAGE / name).read_text(encoding="utf-8")
