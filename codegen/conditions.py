"""Conditions of the program IR: conjunctions of tests of the step and the rank.

They are data. `holds` evaluates them for any steps and ranks, `simplified` drops tests that are
implied by what is known, and a target prints the others.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ringloom.planner.loops.form import Expr, Guard, Ints, When

RANK = -1  # in place of an axis
Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Steps:
    """first <= step <= last; None is unbounded."""

    first: int | None
    last: int | None

    def holds(self, t: int, coordinates: Ints) -> Flags:
        """Evaluates the test in step t, on ranks with these coordinates [n, axes + 1]: [n]."""
        late = self.first is None or t >= self.first
        return np.full(len(coordinates), late and (self.last is None or t <= self.last))


@dataclass(frozen=True, slots=True)
class Every:
    """The first `width` of each `every` steps, counted from step `first`."""

    first: int
    every: int
    width: int

    def holds(self, t: int, coordinates: Ints) -> Flags:
        """As of `Steps`."""
        return np.full(len(coordinates), (t - self.first) % self.every < self.width)


@dataclass(frozen=True, slots=True)
class Bound:
    """low <= x <= high, where x is a coordinate or the rank; None is unbounded.

    Wraps around the end of the axis if low > high.
    """

    axis: int
    low: Expr | None
    high: Expr | None

    def holds(self, t: int, coordinates: Ints) -> Flags:
        """As of `Steps`."""
        x = coordinates[:, -1] if self.axis == RANK else coordinates[:, :-1][:, self.axis]
        every = np.ones(len(coordinates), np.bool_)
        above = x >= self.low.at(t, coordinates) if self.low else every
        below = x <= self.high.at(t, coordinates) if self.high else every
        if self.low is None or self.high is None:
            return above & below
        rises = self.low.at(t, coordinates) <= self.high.at(t, coordinates)
        return np.where(rises, above & below, above | below)


@dataclass(frozen=True, slots=True)
class Span:
    """From the first to the last step of each rank; never where first > last."""

    first: tuple[int, ...]
    last: tuple[int, ...]

    def holds(self, t: int, coordinates: Ints) -> Flags:
        """As of `Steps`."""
        return Guard(spans=tuple(zip(self.first, self.last, strict=True))).at(t, coordinates)


@dataclass(frozen=True, slots=True)
class Listed:
    """The ranks of a list."""

    ranks: tuple[int, ...]

    def holds(self, t: int, coordinates: Ints) -> Flags:
        """As of `Steps`."""
        return Guard(ranks=self.ranks).at(t, coordinates)


Test = Steps | Every | Bound | Span | Listed
Condition = tuple[Test, ...]


def condition(when: When) -> Condition:
    """Returns the steps and ranks of a statement as a condition."""
    guard = when.guard
    pause = [Every(when.first, when.every, when.width)] if when.every > 1 else []
    bounds = (Bound(*bound) for bound in guard.bounds)
    span = [Span(*map(tuple, zip(*guard.spans, strict=True)))] if guard.spans else []
    listed = [Listed(guard.ranks)] if guard.ranks else []
    return (Steps(when.first, None), Steps(None, when.last), *pause, *bounds, *span, *listed)


def steps_of(on: Condition) -> Condition:
    """Returns the tests that are the same on all ranks."""
    return tuple(test for test in on if isinstance(test, Steps | Every))


def ranks_of(on: Condition) -> Condition:
    """Returns the tests that depend on the rank."""
    return tuple(test for test in on if not isinstance(test, Steps | Every))


def holds(tests: Condition, steps: Iterable[int], coordinates: Ints) -> Flags:
    """Evaluates the conjunction of tests: [steps, ranks]."""
    rows = list[Flags]()
    for t in steps:
        on = np.ones(len(coordinates), np.bool_)
        for test in tests:
            on &= test.holds(t, coordinates)
        rows.append(on)
    return np.array(rows)


def simplified(
    tests: Condition, steps: Sequence[int], coordinates: Ints, known: Flags
) -> Condition:
    """Returns the tests that are not implied by `known` [steps, ranks]."""
    each = [holds((test,), steps, coordinates) for test in tests]
    kept = list(range(len(tests)))
    goal = np.logical_and.reduce([known, *each])
    for n in range(len(tests)):
        rest = [each[i] for i in kept if i != n]
        if np.array_equal(np.logical_and.reduce([known, *rest]), goal):
            kept.remove(n)
    return joined(tuple(tests[i] for i in kept))


def joined(tests: Condition) -> Condition:
    """first <= step, step <= last  -->  first <= step <= last"""
    match tests:
        case (Steps(first, None), Steps(None, last), *rest):
            return (Steps(first, last), *rest)
    return tests
