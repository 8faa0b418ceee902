"""OneLine   values whose repr is the Python that builds them, or of a long one both its ends."""

import re
from typing import Any

LINE = 120  # characters of a repr
HEAD, TAIL = 80, 30  # of these, of Python that is longer


class OneLine:
    """Prints as `python`, which a subclass gives; cut where that does not fit a line."""

    __slots__ = ()

    @property
    def python(self) -> str:
        """The Python that builds the value, however long that is."""
        raise NotImplementedError

    def __repr__(self) -> str:
        text = self.python
        return text if len(text) <= LINE else f"<{both_ends(text)}>"


def both_ends(text: str) -> str:
    """Returns a text, or of one that does not fit a line its two ends, with whole numbers."""
    head, tail = re.sub(r"\d+$", "", text[:HEAD]), re.sub(r"^\d*[, ]*", "", text[-TAIL:])
    return text if len(text) <= LINE else f"{head} ... {tail}"


def python(value: Any) -> str:
    """Returns the Python that builds a value, its parts included."""
    if isinstance(value, OneLine):
        return value.python
    if type(value) is tuple:
        return f"({', '.join(map(python, value))}{',' * (len(value) == 1)})"
    return repr(value)
