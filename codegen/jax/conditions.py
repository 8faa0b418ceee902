"""Conditions of a loop form as Python text that holds for arrays of devices, too."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from codegen.text import Flags, Names, expression
from planner.errors import PlanError
from planner.loops.form import Expr, Guard, Ints, Loops

SIZES = {1: ("RANKS",), 2: ("RING", "GROUP")}  # of the axes of a mesh


def numbers(mesh: tuple[int, ...]) -> dict[str, int]:
    """The sizes of a mesh by their names."""
    return {"RANKS": int(np.prod(mesh)), **dict(zip(SIZES[len(mesh)], mesh, strict=True))}


def comparison(name: str, low: str | None, high: str | None) -> str:
    """low <= name <= high as Python over arrays."""
    if low is not None and low == high:
        return f"{name} == {low}"
    texts = list[str]()
    if low is not None:
        texts.append(f"{name} > {low[:-4]}" if low.endswith(" + 1") else f"{name} >= {low}")
    if high is not None:
        texts.append(f"{name} < {high[:-4]}" if high.endswith(" - 1") else f"{name} <= {high}")
    return both(texts)


def both(texts: Sequence[str]) -> str:
    """All of some conditions."""
    if len(texts) == 1:
        return texts[0]
    return " & ".join(f"({text})" for text in texts)


@dataclass(frozen=True)
class Domain:
    """Steps and all ranks: where a condition is asked; not asked where `known` is False."""

    steps: tuple[int, ...]
    coordinates: Ints
    known: Flags | None = None

    def of(self, guard: Guard) -> Flags:
        """The guard on each step and rank: [steps, ranks]."""
        flags = np.stack([guard.at(t, self.coordinates) for t in self.steps])
        return flags if self.known is None else flags & self.known

    def but(self, known: Flags) -> "Domain":
        """The domain without what `known` leaves out."""
        return replace(self, known=known if self.known is None else self.known & known)

    def cyclic(self, low: Expr, high: Expr) -> bool:
        """True if an interval wraps around somewhere."""
        x = self.coordinates
        return any(bool((low.at(t, x) > high.at(t, x)).any()) for t in self.steps)


def conditions(guard: Guard, names: Names, loops: Loops, on: Domain) -> list[str]:
    """The conditions of a guard that are needed on a domain, each as text."""
    if guard.tabled:
        raise PlanError("a condition that is a list of ranks")
    wanted, bounds = on.of(guard), list(guard.bounds)
    for bound in tuple(bounds):  # what holds anyway is left out
        fewer = [b for b in bounds if b is not bound]
        if np.array_equal(on.of(Guard(tuple(fewer))), wanted):
            bounds = fewer
    return [_bound(bound, names, loops, on) for bound in bounds]


def _bound(
    bound: tuple[int, Expr | None, Expr | None], names: Names, loops: Loops, on: Domain
) -> str:
    axis, low, high = bound
    name = "rank" if axis < 0 else names.axes[axis]
    for ends in ((low, None), (None, high)):
        if np.array_equal(on.of(Guard(((axis, *ends),))), on.of(Guard((bound,)))):
            low, high = ends
    lo, hi = (None if e is None else expression(e, names) for e in (low, high))
    if low and high and on.cyclic(low, high):
        assert lo
        assert hi
        if lo.isdecimal() and hi.isdecimal():
            return f"({name} >= {lo}) | ({name} <= {hi})"
        n = loops.mesh[axis] if axis >= 0 else int(np.prod(loops.mesh))
        return f"({name} - ({lo})) % {n} <= ({hi} - ({lo})) % {n}"
    return comparison(name, lo, hi)
