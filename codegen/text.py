"""Python text of the numbers of a loop form."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from codegen.reflow import numbers
from planner.errors import PlanError
from planner.loops.form import Expr

Flags = NDArray[np.bool_]
MOST = 10  # ranks that a line lists
V = TypeVar("V")
Data = dict[str, tuple[int, ...]]  # numbers of all ranks, by name


def numbered(*names: str) -> Iterator[str]:
    """Candidates: names, then the last of them with numbers."""
    yield from names
    for n in count(2):
        yield ", ".join(f"{word}_{n}" for word in names[-1].split(", "))


def entered(table: dict[str, V], names: Iterable[str], value: V) -> str:
    """Enters a value into a table; returns the first of some names that is free or the value's."""
    return next(name for name in names if table.setdefault(name, value) == value)


@dataclass(frozen=True)
class Names:
    """Names of the coordinates of a rank, and of the step, which counts from `first`."""

    axes: tuple[str, ...]
    first: int = 0
    at: int | None = None  # the step, where there is only one
    sizes: Mapping[int, str] = field(default_factory=dict)  # names of the sizes of axes
    step: str = "step"
    rank: str = "rank"  # "" where another one is meant, along one axis of several
    data: Data = field(default_factory=dict)  # of a program

    @property
    def values(self) -> dict[str, int]:
        """The sizes by their names."""
        return {name: size for size, name in self.sizes.items()}

    def count(self, n: int) -> str:
        """A number of ranks or steps, by the size of an axis if it is that or one less."""
        if n in self.sizes:
            return self.sizes[n]
        return f"{self.sizes[n + 1]} - 1" if n + 1 in self.sizes else str(n)

    def but(self, axis: int, name: str) -> "Names":
        """The names where another rank is meant, elsewhere along one axis."""
        axes = *self.axes[:axis], name, *self.axes[axis + 1 :]
        return replace(self, axes=axes, rank=name if len(axes) == 1 else "")

    def listed(self, ranks: Sequence[int]) -> str:
        """Some ranks: a tuple, or the name of one that is long."""
        few = len(ranks) <= MOST
        return str(tuple(ranks)) if few else entered(self.data, numbered("LISTED"), tuple(ranks))

    def coordinate(self, axis: int) -> str:
        """The name of a coordinate; of the rank itself for axis -1."""
        if axis >= 0:
            return self.axes[axis]
        if not self.rank:
            raise PlanError("which ranks take part follows no axis of their mesh")
        return self.rank


def expression(e: Expr, names: Names) -> str:
    """The text of a whole number: `rank - step + 1`, `(rank + 3) % RANKS`."""
    if e.table:
        raise PlanError("what changes with the rank or the step follows no formula")
    clock, constant = names.step, e.constant
    if names.at is not None:
        constant += e.step * ((names.at - e.phase) // e.period)
        e = replace(e, step=0)
    elif e.period == 1:
        constant += e.step * (names.first - e.phase)
    else:
        offset = names.first - e.phase
        clock = f"({clock} {signed(offset)}) // {e.period}" if offset else f"{clock} // {e.period}"
        clock = clock if e.step == 1 else f"({clock})"  # -step // 2 is another number
    text = affine([*zip(e.axes, names.axes, strict=False), (e.step, clock)], constant)
    if not e.modulo:
        return text
    if text.lstrip("-").isdecimal():
        return str(int(text) % e.modulo)
    size = names.sizes.get(e.modulo, str(e.modulo))
    return f"({text}) % {size}" if " " in text else f"{text} % {size}"


def affine(terms: Sequence[tuple[int, str]], constant: int) -> str:
    """A sum of multiples of names and a constant, what is positive first."""
    each = ((k, name if abs(k) == 1 else f"{abs(k)} * {name}") for k, name in terms if k)
    parts = sorted(each, key=lambda part: part[0] < 0)
    if constant or not parts:
        first = bool(parts) and parts[0][0] < 0 < constant
        parts.insert(0 if first else len(parts), (constant, str(abs(constant))))
    (k, text), *rest = parts
    return " ".join(["-" * (k < 0) + text, *(f"{'-' if k < 0 else '+'} {x}" for k, x in rest)])


def quoted(value: object) -> str:
    """A value as Python with double quotes."""
    return repr(value).replace("'", '"')


def signed(number: int) -> str:
    """A number that follows others in a sum."""
    return f"{'-' if number < 0 else '+'} {abs(number)}"


def listed(data: Data) -> list[str]:
    """The constants with the numbers of all ranks."""
    lines = [line for name, values in data.items() for line in numbers(name, values)]
    return (
        [
            "",
            "# by rank, the LAST or FIRST step in which it takes part; LISTED ranks take part",
            *lines,
        ]
        if lines
        else []
    )
