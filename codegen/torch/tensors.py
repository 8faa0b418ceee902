"""Lists of tensors as text: how one is written, and how it is given to a function.

list_of("k", "v")            [k, v]                     as arguments    k, v
Tensors("kv")                kv                                         *kv
list_of("q").each(f)         [f(q)]                                     f(q)
list_of("k", "v").each(f)    [f(x) for x in (k, v)]                     *[f(x) for x in (k, v)]
"""

from collections.abc import Callable
from dataclasses import dataclass

Text = Callable[[str], str]


@dataclass(frozen=True)
class Tensors:
    """The tensors of a list, by its name or by theirs, and what is made of each."""

    source: str | tuple[str, ...]
    made: Text = str

    def each(self, made: Text) -> "Tensors":
        """The same made of each tensor."""
        return Tensors(self.source, lambda x: made(self.made(x)))

    @property
    def plain(self) -> bool:
        """True if nothing is made of them."""
        return self.made("x") == "x"

    @property
    def computed(self) -> bool:
        """True if the list is what a function returns."""
        return isinstance(self.source, str) and self.source.endswith(")")

    @property
    def apart(self) -> tuple[str, ...]:
        """The text of each tensor, none where one is read in a loop over them."""
        names = self.source if isinstance(self.source, tuple) else ()
        return tuple(map(self.made, names)) if self.plain or len(names) == 1 else ()

    @property
    def text(self) -> str:
        """The list."""
        if self.apart:
            return f"[{', '.join(self.apart)}]"
        source = self.source if isinstance(self.source, str) else f"({', '.join(self.source)})"
        return source if self.plain else f"[{self.made('x')} for x in {source}]"

    @property
    def arguments(self) -> str:
        """All of them, as arguments of a function or items of a list."""
        return ", ".join(self.apart) or f"*{self.text}"


def list_of(*names: str) -> Tensors:
    """A list of single tensors."""
    return Tensors(names)
