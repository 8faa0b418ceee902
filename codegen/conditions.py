"""Conditions of the program IR: conjunctions of tests of the step and the rank.

Conditions are data. `holds` evaluates them for any steps and ranks, `simplify` drops tests that
are already known to hold, and targets print the remaining ones.
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
        started = self.first is None or t >= self.first
        return np.full(len(coordinates), started and (self.last is None or t <= self.last))


@dataclass(frozen=True, slots=True)
class Every:
    """The first `width` of each `every` steps, counted from step `first`."""

    first: int
    every: int
    width: int

    def holds(self, t: int, coordinates: Ints) -> Flags:
        """Evaluates the test as `Steps.holds` does."""
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
        """Evaluates the test as `Steps.holds` does."""
        return Guard(bounds=((self.axis, self.low, self.high),)).at(t, coordinates)


@dataclass(frozen=True, slots=True)
class Span:
    """first[rank] <= step <= last[rank]; never holds on ranks with first[rank] > last[rank]."""

    first: tuple[int, ...]
    last: tuple[int, ...]

    def holds(self, t: int, coordinates: Ints) -> Flags:
        """Evaluates the test as `Steps.holds` does."""
        return Guard(spans=tuple(zip(self.first, self.last, strict=True))).at(t, coordinates)


@dataclass(frozen=True, slots=True)
class Listed:
    """rank in ranks."""

    ranks: tuple[int, ...]

    def holds(self, t: int, coordinates: Ints) -> Flags:
        """Evaluates the test as `Steps.holds` does."""
        return Guard(ranks=self.ranks).at(t, coordinates)


Test = Steps | Every | Bound | Span | Listed
Condition = tuple[Test, ...]


def condition(when: When) -> Condition:
    """Returns the steps and ranks of a statement as a condition."""
    guard = when.guard
    pauses = [Every(when.first, when.every, when.width)] if when.every > 1 else []
    bounds = (Bound(*bound) for bound in guard.bounds)
    spans = [Span(*map(tuple, zip(*guard.spans, strict=True)))] if guard.spans else []
    lists = [Listed(guard.ranks)] if guard.ranks else []
    return (Steps(when.first, None), Steps(None, when.last), *pauses, *bounds, *spans, *lists)


def steps_of(on: Condition) -> Condition:
    """Returns the tests that depend on the step alone."""
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


def simplify(tests: Condition, steps: Sequence[int], coordinates: Ints, known: Flags) -> Condition:
    """Returns the tests that are not implied by `known` [steps, ranks]."""
    flags = [holds((test,), steps, coordinates) for test in tests]
    indices = list(range(len(tests)))
    goal = np.logical_and.reduce([known, *flags])
    for n in range(len(tests)):
        others = [flags[i] for i in indices if i != n]
        if np.array_equal(np.logical_and.reduce([known, *others]), goal):
            indices.remove(n)
    return _merge_steps(tuple(tests[i] for i in indices))


def _merge_steps(tests: Condition) -> Condition:
    """first <= step, step <= last  -->  first <= step <= last"""
    match tests:
        case (Steps(first, None), Steps(None, last), *rest):
            return (Steps(first, last), *rest)
    return tests
