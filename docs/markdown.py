"""Writes tables in Markdown."""

from collections.abc import Iterable, Iterator

Lines = Iterator[str]


def table(head: Iterable[str], rows: Iterable[Iterable[object]]) -> Lines:
    """Yields the lines of a Markdown table; bars in cells are escaped."""
    head = list(head)
    yield "| " + " | ".join(head) + " |"
    yield "|" + "---|" * len(head)
    for row in rows:
        yield "| " + " | ".join(str(cell).replace("|", "\\|") for cell in row) + " |"
    yield ""
