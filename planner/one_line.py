"""OneLine   values whose repr is the Python that builds them, shortened to both ends if long."""

import re
from typing import Any

LINE = 120  # characters of a repr
HEAD, TAIL = 80, 30  # characters kept of longer Python


class OneLine:
    """Prints as `python`, which a subclass defines, shortened to fit a line."""

    __slots__ = ()

    @property
    def python(self) -> str:
        """The Python that builds the value, of any length."""
        raise NotImplementedError

    def __repr__(self) -> str:
        text = self.python
        return text if len(text) <= LINE else f"<{both_ends(text)}>"


def both_ends(text: str) -> str:
    """Returns a text; if it does not fit a line, its two ends, cut between numbers."""
    head, tail = re.sub(r"\d+$", "", text[:HEAD]), re.sub(r"^\d*[, ]*", "", text[-TAIL:])
    return text if len(text) <= LINE else f"{head} ... {tail}"


def python(value: Any) -> str:
    """Returns the Python that builds a value, including its parts."""
    if isinstance(value, OneLine):
        return value.python
    if type(value) is tuple:
        return f"({', '.join(map(python, value))}{',' * (len(value) == 1)})"
    return repr(value)
