"""writer   source text as it leaves: lines with a margin, and definitions pasted word for word."""

import inspect
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache


class Writer:
    """Collects lines; calling it writes one or more, `block` indents what follows."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._margin = ""

    def __call__(self, text: str = "") -> None:
        for line in textwrap.dedent(text).strip("\n").split("\n"):
            self.lines.append(self._margin + line if line else "")

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """Write `head`, then indent everything until the block ends."""
        self(head)
        with self.inside():
            yield

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Indent everything until the block ends."""
        self._margin += "    "
        yield
        self._margin = self._margin[4:]

    def section(self, text: str) -> None:
        """A top-level definition, two empty lines before it."""
        while self.lines and not self.lines[-1]:
            self.lines.pop()
        if self.lines:
            self.lines += ["", ""]
        self(text)

    def paste(self, *definitions: Callable[..., object]) -> None:
        """Definitions of this package, word for word."""
        for definition in definitions:
            self.section(source(definition))

    def title(self, text: str) -> None:
        """A comment that opens a part of the file."""
        self.section(f"# ---- {text}")

    def text(self) -> str:
        """The whole file."""
        return "\n".join(self.lines).rstrip("\n") + "\n"


@cache
def source(definition: Callable[..., object]) -> str:
    """The text of a definition; reading one takes longer than writing it."""
    return inspect.getsource(definition)
