"""Which queries meet which keys: the rectangles of two values as text.

Rectangles that are full, causal or strict become cases of `tile(step, rank, size)`, or stand where
they are attended if there is but one. All others are cut at run time by the mask's own bands.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import gcd

import numpy as np

from codegen.lowered.conditions import Condition, Domain, both, conditions, needed, together
from codegen.lowered.shares import head_of
from codegen.lowered.sums import plain
from codegen.reflow import WIDTH
from codegen.text import Flags, Names, expression
from planner.errors import PlanError
from planner.loops.form import Attend, Ends, Expr, Part

EVERYTHING, FRONT, BACK = "everything", "front", "back"
HALVES = {EVERYTHING: "slice(None)", FRONT: "slice(size)", BACK: "slice(size, None)"}


@dataclass(frozen=True)
class Meeting:
    """The rectangles of one value of queries and one of keys, in some steps."""

    attends: tuple[Attend, ...]
    domain: Domain
    names: Names
    pieces: tuple[int, int]  # of the queries, of the keys
    unit: int = 1  # pieces in `size` tokens

    @property
    def values(self) -> tuple[str, str]:
        """The names of the two values."""
        return self.attends[0].q[0].value, self.attends[0].kv[0].value

    def picked(self, slices: int) -> str:
        """The text behind a tensor that takes the heads that queries meet keys with, "" for all."""
        head = head_of(self.attends)
        return "" if head is None else f".chunk({slices}, 1)[{head}]"

    def cases(self) -> list[tuple[Attend, list[Condition], Flags]]:
        """Each rectangle with its conditions, and where they all hold; never two at once."""
        made = []
        for s in self.attends:
            said = conditions(s.when, self.domain, self.names)
            made.append((s, said, together(said, self.domain.everywhere)))
        if (np.sum([on for _, _, on in made], axis=0) > 1).any():
            raise PlanError("a rank attends two rectangles of the same values in a step")
        return made

    @property
    def plain(self) -> bool:
        """True if no rectangle has to be cut."""
        return all(map(plain, self.attends))

    @property
    def simple(self) -> bool:
        """True if all rectangles are whole, and causal or full."""
        return all(
            s.kind in ("full", "causal") and all(p.pieces is None for p in (*s.q, *s.kv))
            for s in self.attends
        )

    @property
    def everywhere(self) -> Flags:
        """Where any of them is attended."""
        where: Flags = np.logical_or.reduce([on for _, _, on in self.cases()])
        return where

    def guard(self) -> str:
        """The condition under which one of them is attended; "" for always."""
        return both(covering(self.everywhere, [said for _, said, _ in self.cases()]))

    def causal(self) -> str:
        """The text of `causal` where all rectangles are simple."""
        kinds = {s.kind for s in self.attends}
        if len(kinds) == 1:
            return str(kinds == {"causal"})
        cases = self.cases()
        where = np.logical_or.reduce([on for s, _, on in cases if s.kind == "causal"])
        said = [c for s, c, _ in cases if s.kind == "causal"]
        return both(needed(covering(where, said, self.everywhere), self.everywhere))


def covering(
    where: Flags, said: Sequence[Sequence[Condition]], known: Flags | None = None
) -> list[Condition]:
    """Some of the conditions of one case that hold exactly `where`, of what is `known`."""
    inside = np.ones_like(where) if known is None else known
    if (where == inside).all():
        return []
    for conditions_ in said:
        kept = [c for c in conditions_ if (c.holds | ~where).all()]
        if (together(kept, inside) == (where & inside)).all():
            return needed(kept, inside)
    raise PlanError("what ranks attend cannot be said in one condition")


# ---- the function `tile`


def tile_function(meeting: Meeting) -> tuple[str, list[str], bool]:
    """The cases as a function: its arguments, its body, and if it may have nothing to do."""
    left, lines, slices = meeting.domain.everywhere, list[str](), set[str]()
    cases = sorted(meeting.cases(), key=lambda case: case[0].when.first)
    for s, said, on in cases:
        rows, cols = bounds_of(s, meeting, slices)
        answer = f"return {rows}, {cols}, {s.kind != 'full'}"
        if (on == left).all():
            left = left & ~on
            short = joined(lines[-2:], answer)
            lines = [*lines[:-2], short] if short else [*lines, f"    {answer}"]
            break
        asked = both(needed(said, left))
        lines += [f"    if {asked}:", f"        {answer}"]
        left = left & ~on
    if left.any():
        lines.append("    return None")
    used = [x for x in HALVES if x in slices]
    head = []
    if used:
        head = [f"    {', '.join(used)} = {', '.join(HALVES[x] for x in used)}"]
    told = "The queries and keys that meet in a step, as slices of the shards, and if masked."
    arguments = ", ".join([meeting.names.step, *meeting.names.axes, "size"])
    return arguments, [f'    """{told}"""', *head, *lines], bool(left.any())


def joined(before: Sequence[str], answer: str) -> str:
    """The last two cases on one line, where they fit on it; a single case is no two."""
    if not before:
        return ""
    asked, first = (line.strip() for line in before)
    first, last = (x.removeprefix("return ") for x in (first, answer))
    line = f"    return ({first}) if {asked[3:-1]} else ({last})"
    return line if len(line) <= WIDTH else ""


def bounds_of(s: Attend, meeting: Meeting, used: set[str]) -> tuple[str, str]:
    """The slices of one rectangle; a strict one is causal without first row and last column."""
    parts = list(zip((s.q[0], s.kv[0]), meeting.pieces, strict=True))
    if s.kind == "strict":
        if any(p.pieces is not None for p, _ in parts):
            raise PlanError("some pieces under a mask that leaves out the diagonal")
        return "slice(1, None)", "slice(-1)"
    rows, cols = (slice_of(p, n, meeting, used) for p, n in parts)
    return rows, cols


def slice_of(part: Part, count: int, meeting: Meeting, used: set[str]) -> str:
    """The slice of a part of a value of so many pieces."""
    if part.pieces is None:
        used.add(EVERYTHING)
        return EVERYTHING
    ends, half = part.pieces, count // 2
    for name, low in ((FRONT, 0), (BACK, half)):
        if half == meeting.unit and ends == (Expr(low), Expr(low + half - 1)):
            used.add(name)
            return name
    first, past = edges(ends, meeting)
    return f"slice({past})" if first == "0" else f"slice({first}, {past})"


def edges(ends: Ends, meeting: Meeting) -> tuple[str, str]:
    """Where pieces begin and end, in tokens."""
    low, high = ends
    past = replace(high, constant=high.constant + 1)
    if high.modulo or high.period > 1:
        raise PlanError("pieces whose number goes around")
    first, last = (times(expression(in_units(e, meeting.unit), meeting.names)) for e in (low, past))
    return first, last


def in_units(e: Expr, unit: int) -> Expr:
    """A number of pieces, in units of so many of them."""
    numbers = (e.constant, e.step, *e.axes)
    if any(x % unit for x in numbers) or e.table:
        raise PlanError(f"a slice is no multiple of {unit} pieces")
    constant, step, *axes = (x // unit for x in numbers)
    return replace(e, constant=constant, step=step, axes=tuple(axes))


def unit_of(attends: Sequence[Attend], pieces: Mapping[tuple[str, str], int]) -> int:
    """The pieces of which all slices are multiples."""
    numbers = [0]
    for s in attends:
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
