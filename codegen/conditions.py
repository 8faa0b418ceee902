"""Conditions of the program IR: conjunctions of tests of the step and the rank.

Conditions are data. `holds` evaluates them for any steps and ranks, `simplify` drops tests that
are already known to hold, and targets print the remaining ones.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import assert_never

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


@dataclass(frozen=True, slots=True)
class Every:
    """The first `width` of each `every` steps, counted from step `first`."""

    first: int
    every: int
    width: int


@dataclass(frozen=True, slots=True)
class Bound:
    """low <= x <= high, where x is a coordinate or the rank; None is unbounded.

    Wraps around the end of the axis if low > high.
    """

    axis: int
    low: Expr | None
    high: Expr | None


@dataclass(frozen=True, slots=True)
class Span:
    """first[rank] <= step <= last[rank]; never holds on ranks with first[rank] > last[rank]."""

    first: tuple[int, ...]
    last: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Listed:
    """rank in ranks."""

    ranks: tuple[int, ...]


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
    """Marks the steps and ranks on which all tests hold: [steps, ranks]."""
    rows = list[Flags]()
    for t in steps:
        on = np.ones(len(coordinates), np.bool_)
        for test in tests:
            on &= _mark(test, t, coordinates)
        rows.append(on)
    return np.array(rows)


def _mark(test: Test, t: int, coordinates: Ints) -> Flags:
    """Marks the ranks with these coordinates [n, axes + 1] on which a test holds in step t: [n]."""
    match test:
        case Steps(first, last):
            after, before = first is None or t >= first, last is None or t <= last
            return np.full(len(coordinates), after and before)
        case Every(first, every, width):
            return np.full(len(coordinates), (t - first) % every < width)
        case Bound(axis, low, high):
            if not RANK <= axis < coordinates.shape[1] - 1:
                raise IndexError(f"a condition names axis {axis}")
            return Guard(bounds=((axis, low, high),)).at(t, coordinates)
        case Span(first, last):
            return Guard(spans=tuple(zip(first, last, strict=True))).at(t, coordinates)
        case Listed(ranks):
            return Guard(ranks=ranks).at(t, coordinates)
        case _:
            assert_never(test)


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
