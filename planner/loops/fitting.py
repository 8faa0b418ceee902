"""Fits: numbers that change with the step or the rank, as expressions; sets of ranks as boxes.

Among equally long fits the simplest: the plain step before an outer loop's, no modulus before one.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from planner.loops.form import Expr, Ints

Bools = NDArray[np.bool_]
Box = list[tuple[int, int, int]]  # axis, first, last
SAMPLE = 64  # points of a plane that are looked at before all of them are


def line(
    values: Sequence[int] | Ints, modulo: int = 0, start: int = 0, periods: Sequence[int] = ()
) -> tuple[int, Expr]:
    """How many of the first values, from step `start` on, one expression gives, and that."""
    xs = np.asarray(values, np.intp)
    steps, best = np.diff(xs), (0, Expr())
    clocks = [(1, 0)]
    if len(steps) and (steps != steps[0]).any():
        clocks += [(p, phase) for p in periods for phase in range(p)]
    for period, phase in clocks:
        ticks = np.diff((start + np.arange(len(xs)) - phase) // period)
        by = int(steps[np.argmax(ticks)]) if ticks.any() else 0
        for m in dict.fromkeys((0, modulo)):
            slope = centred(by, m)
            off = steps - slope * ticks
            wrong = off % m != 0 if m else off != 0
            many = 1 + (int(np.argmax(wrong)) if wrong.any() else len(steps))
            if many > best[0]:
                first = int(xs[0]) - slope * ((start - phase) // period)
                if not slope:
                    best = many, Expr(first)
                else:
                    best = many, Expr(centred(first, m), slope, (), m, (), period, phase)
    return best


def centred(x: int, modulo: int) -> int:
    """The number of smallest size that is like x, modulo m; x itself where m is 0."""
    return (x + modulo // 2) % modulo - modulo // 2 if modulo else x


def plane(coordinates: Ints, t: Ints, values: Ints) -> Expr | None:
    """The expression of coordinates [n, axes] and steps [n] that gives all values [n], or None."""
    if len(t) > SAMPLE:
        part = np.linspace(0, len(t) - 1, SAMPLE).astype(np.intp)
        if plane(coordinates[part], t[part], values[part]) is None:
            return None
    columns = np.column_stack([coordinates, t])
    varies = np.flatnonzero((columns != columns[0]).any(axis=0))
    terms = np.column_stack([np.ones(len(t), np.intp), columns[:, varies]])
    exact = np.linalg.lstsq(terms.astype(float), values.astype(float), rcond=None)[0]
    factors = np.rint(exact).astype(np.intp)
    if (terms @ factors != values).any():
        return None
    full = np.zeros(columns.shape[1], np.intp)
    full[varies] = factors[1:]
    axes = tuple(full[:-1].tolist()) if full[:-1].any() else ()
    return Expr(int(factors[0]), int(full[-1]), axes)


def intervals(on: Bools) -> tuple[Ints, Ints, Bools]:
    """First and last place of each row of sets [n, places], and which are cyclic intervals."""

    def span(x: Bools) -> tuple[Ints, Ints, Ints]:
        return x.argmax(axis=1), x.shape[1] - 1 - x[:, ::-1].argmax(axis=1), x.sum(axis=1)

    low, high, many = span(on)
    start, end, none = span(~on)
    plain = high - low + 1 == many
    round_ = ~plain & (end - start + 1 == none)
    return np.where(round_, end + 1, low), np.where(round_, start - 1, high), plain | round_


def boxes(on: Bools, mesh: tuple[int, ...]) -> list[Box | None]:
    """Sets of ranks [n, ranks] as intervals of coordinates, else of ranks in a row, else None."""
    cube, axes, each = on.reshape(-1, *mesh), range(len(mesh)), on.sum(axis=1)
    sides = [np.asarray(cube.any(axis=tuple(j + 1 for j in axes if j != i))) for i in axes]
    ends = [intervals(s) for s in sides]
    filled = np.prod([s.sum(axis=1) for s in sides], axis=0) == each
    good = filled & np.all([ok for *_, ok in ends], axis=0)
    low, high, ok = intervals(on)
    results = list[Box | None]()
    for k in range(len(on)):
        if good[k]:
            results.append([(i, int(a[k]), int(b[k])) for i, (a, b, _) in enumerate(ends)])
        else:
            results.append([(len(mesh), int(low[k]), int(high[k]))] if ok[k] else None)
    return results
