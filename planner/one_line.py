"""OneLine   values whose repr is the Python that builds them, shortened to one line."""

import re
from typing import Any

LINE_WIDTH = 120  # characters of a repr
HEAD, TAIL = 80, 30  # characters at the start and end of a shortened repr


class OneLine:
    """A value that prints as `python`, which a subclass defines, shortened to one line."""

    __slots__ = ()

    @property
    def python(self) -> str:
        """The complete Python that builds the value."""
        raise NotImplementedError

    def __repr__(self) -> str:
        text = self.python
        return text if len(text) <= LINE_WIDTH else f"<{shorten_middle(text)}>"


def shorten_middle(text: str) -> str:
    """Returns the text; if longer than a line, its start and end, cut between numbers."""
    head, tail = re.sub(r"\d+$", "", text[:HEAD]), re.sub(r"^\d*[, ]*", "", text[-TAIL:])
    return text if len(text) <= LINE_WIDTH else f"{head} ... {tail}"


def python(value: Any) -> str:
    """Returns the Python that builds a value, including its parts."""
    if isinstance(value, OneLine):
        return value.python
    if type(value) is tuple:
        return f"({', '.join(map(python, value))}{',' * (len(value) == 1)})"
    return repr(value)
