"""Which queries meet which keys: the rectangles of two values as text.

Rectangles that are full, causal or strict are cases, each with its slices of the shards. All others
are cut at run time by the mask's own bands.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import gcd

from codegen.lowered.conditions import Condition, Domain, conditions, together
from codegen.lowered.walk import plain
from codegen.text import Flags, expression
from planner.errors import PlanError
from planner.loops.form import Attend, Expr, Loops, Part

ALL = "..."  # the slice of all of a value


@dataclass(frozen=True)
class Meeting:
    """The rectangles of one value of queries and one of keys, in some steps."""

    attends: tuple[Attend, ...]
    domain: Domain
    pieces: tuple[int, int]  # of the two values
    unit: int = 1  # pieces in `size` tokens

    @property
    def values(self) -> tuple[str, str]:
        """The names of the two values."""
        return self.attends[0].q[0].value, self.attends[0].kv[0].value

    @property
    def plain(self) -> bool:
        """True if no rectangle has to be cut."""
        return all(map(plain, self.attends))

    @property
    def steps(self) -> list[int]:
        """The steps in which any of them meet."""
        return [t for t in self.domain.steps if any(s.when.on(t) for s in self.attends)]

    def cases(self) -> list[tuple[Attend, list[Condition], Flags]]:
        """Each rectangle with its conditions, and where they all hold."""
        said = [(s, conditions(s.when, self.domain)) for s in self.attends]
        return [(s, asked, together(asked, self.domain.everywhere)) for s, asked in said]

    def arguments(self, s: Attend) -> tuple[str, str, str]:
        """The rows and columns of one rectangle, and if it is masked.

        A strict one is causal without first row and last column.
        """
        parts = s.q[0], s.kv[0]
        if s.kind != "strict":
            rows, cols = map(self.slice_of, parts, self.pieces)
            return rows, cols, str(s.kind == "causal")
        if any(p.pieces is not None for p in parts):
            raise PlanError("parts of a shard are attended without their diagonal")
        return "1:", ":-1", "True"

    def slice_of(self, part: Part, pieces: int) -> str:
        """The slice of a part of a value of so many pieces."""
        if part.pieces is None:
            return ALL
        low, high = part.pieces
        past = replace(high, constant=high.constant + 1)
        if high.modulo or high.period > 1 or low.table or high.table:
            raise PlanError("which pieces a rank attends to goes around the ranks")
        first, last = (times(expression(self.in_units(e), self.domain.names)) for e in (low, past))
        ends = first.removeprefix("0"), last * (past != Expr(pieces))
        return (
            ":".join(ends)
            if all(map(str.isalnum, filter(None, ends)))
            else " : ".join(ends).strip()
        )

    def in_units(self, e: Expr) -> Expr:
        """A number of pieces, in units of so many of them."""
        constant, step, *axes = (x // self.unit for x in (e.constant, e.step, *e.axes))
        return replace(e, constant=constant, step=step, axes=tuple(axes))


def unit_of(loops: Loops, pieces: Mapping[tuple[str, str], int]) -> int:
    """The pieces of which all slices are multiples."""
    numbers = [0]
    for s in (s for s in loops.statements if isinstance(s, Attend)):
        for side, part in (("q", s.q[0]), ("kv", s.kv[0])):
            if part.pieces is not None:
                low, high = part.pieces
                numbers += [low.constant, high.constant + 1, low.step, high.step]
                numbers += [*low.axes, *high.axes, pieces[side, part.value]]
    return gcd(*numbers) or 1


def times(text: str) -> str:
    """So many units, in tokens."""
    if text in ("0", "1"):
        return "0" if text == "0" else "size"
    return f"({text}) * size" if " " in text else f"{text} * size"
