"""Conditions of a loop form as Python text that holds for arrays of devices, too."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

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


def in_steps(steps: Sequence[int], of: Sequence[int], names: Names) -> str:
    """The condition that a step is one of some, among the steps of a loop."""
    step, wanted, asked = names.step, *([t - names.first for t in x] for x in (steps, of))
    low = [f"{step} > {wanted[0] - 1}"] * (wanted[0] > asked[0])
    high = [f"{step} < {wanted[-1] + 1}"] * (wanted[-1] < asked[-1])
    if low and high and len(wanted) == 1:
        return f"{step} == {wanted[0]}"
    rest = sorted({*asked} - {*wanted})
    if len(rest) == 1 and not low and not high:
        return f"{step} != {rest[0]}"
    cores = [[core] for core in _every(wanted, names)] or [[]]
    texts = ([*a, *core, *b] for a in ([], low) for b in ([], high) for core in cores)
    for text in map(" and ".join, texts):
        if [t for t in asked if eval(text or "True", {step: t, **names.values})] == wanted:
            return text
    raise PlanError("statements that pause in a loop")


def _every(steps: Sequence[int], names: Names) -> Iterator[str]:
    """The conditions that repeat where steps pause at equal distances."""
    pauses = [(a, b) for a, b in pairwise(steps) if b - a > 1]
    ends, begins = [*(a for a, _ in pauses), steps[-1]], [steps[0], *(b for _, b in pauses)]
    for every in {x[1] - x[0] for x in (ends, begins) if pauses}:
        left = sorted({t % every for t in steps})
        which = (
            f"== {left[0]}" if len(left) == 1 else f">= {left[0]}" if left[0] else f"< {len(left)}"
        )
        yield f"{names.step} % {names.sizes.get(every, every)} {which}"
