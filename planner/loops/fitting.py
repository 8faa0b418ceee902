"""Fits numbers that depend on step and rank by expressions, and sets of ranks by guards.

Among equally long fits, prefers the plain step to that of an outer loop, and no modulus.

guards    {step: ranks}, consecutive steps  -->  as few [first, last, guard] as possible, with
          intervals that move with the step; or a first and a last step per rank, instead of three
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter

import numpy as np

from ringloom.planner.loops.form import Expr, Guard, Ints
from ringloom.planner.loops.values import Bools

NONE = 1 << 40  # a modulus without effect


def line(
    values: Sequence[int] | Ints, modulo: int = 0, start: int = 0, periods: Sequence[int] = ()
) -> tuple[int, Expr]:
    """Fits one expression to as many values as possible from step `start` on; returns both."""
    xs = np.asarray(values, np.intp)
    steps, clocks = np.diff(xs), [(1, 0)]
    if not steps.any():
        return len(xs), Expr(int(xs[0]))
    if (steps != steps[0]).any():
        clocks += [(p, phase) for p in periods for phase in range(p)]
    every, since = np.array(clocks).T[:, :, None]
    ticks = np.diff((start + np.arange(len(xs)) - since) // every)  # [clocks, steps]
    by = np.where(ticks.any(axis=1), steps[ticks.argmax(axis=1)], 0)
    moduli = np.array([NONE, modulo] if modulo else [NONE])
    slopes = nearest_residue(by[:, None], moduli)  # [clocks, moduli]
    wrong = (steps - slopes[:, :, None] * ticks[:, None]) % moduli[:, None] != 0
    many = 1 + np.where(wrong.any(axis=2), wrong.argmax(axis=2), len(steps))
    at, m = divmod(int(many.argmax()), len(moduli))  # the first, and simplest, of the longest
    (period, phase), slope = clocks[at], int(slopes[at, m])
    if not slope:
        return int(many.max()), Expr(int(xs[0]))
    first = int(nearest_residue(xs[:1] - slope * ((start - phase) // period), moduli[m])[0])
    return int(many.max()), Expr(first, slope, (), modulo * m, (), period, phase)


def nearest_residue(x: Ints, modulo: Ints) -> Ints:
    """Returns the residues of smallest absolute value."""
    return (x + modulo // 2) % modulo - modulo // 2


def plane(coordinates: Ints, t: Ints, values: Ints) -> Expr | None:
    """Fits an expression of coordinates [n, axes] and steps [n] to all values [n], or None."""
    if (values == values[0]).all():
        return Expr(int(values[0]))
    columns = np.column_stack([coordinates, t])
    first = columns[0]
    varies = np.flatnonzero((columns != first).any(axis=0))
    far, gain = columns[:, varies] - first[varies], values - values[0]
    normal = (far.T @ far).astype(float), (far.T @ gain).astype(float)  # small: rows are many
    factors = np.zeros(len(first), np.intp)
    factors[varies] = np.rint(np.linalg.lstsq(*normal, rcond=None)[0])
    if (far @ factors[varies] != gain).any():
        return None
    axes = tuple(factors[:-1].tolist()) if factors[:-1].any() else ()
    return Expr(int(values[0] - factors @ first), int(factors[-1]), axes)


def intervals(on: Bools) -> tuple[Ints, Ints, Bools]:
    """Returns first and last place of each set [n, places], and which are cyclic intervals."""

    def span(x: Bools) -> tuple[Ints, Ints, Ints]:
        return x.argmax(axis=1), x.shape[1] - 1 - x[:, ::-1].argmax(axis=1), x.sum(axis=1)

    low, high, many = span(on)
    start, end, none = span(~on)
    plain = high - low + 1 == many
    round_ = ~plain & (end - start + 1 == none)
    return np.where(round_, end + 1, low), np.where(round_, start - 1, high), plain | round_


def boxes(on: Bools, mesh: tuple[int, ...]) -> tuple[Ints, Ints]:
    """Returns a form for each set of ranks [n, ranks], and the ends of its intervals.

    0: intervals along all axes, 1: an interval of ranks, 2: neither. The ends are the first and
    last coordinate along each axis, then rank: [n, axes + 1, 2].
    """
    cube, axes = on.reshape(-1, *mesh), range(len(mesh))
    sides = [np.asarray(cube.any(axis=tuple(j + 1 for j in axes if j != i))) for i in axes]
    ends = [intervals(side) for side in (*sides, on)]
    filled = np.prod([s.sum(axis=1) for s in sides], axis=0) == on.sum(axis=1)
    *along, in_row = [whole for *_, whole in ends]
    how = np.where(filled & np.all(along, axis=0), 0, np.where(in_row, 1, 2))
    return how, np.stack([np.stack(pair, axis=1) for *pair, _ in ends], axis=1)


@dataclass(frozen=True)
class Piece:
    """Steps first..last with one guard, and the fits of each step's numbers."""

    first: int
    last: int
    guard: Guard
    fits: list[Expr]

    @property
    def weight(self) -> float:
        moving = sum(e is not None and e.step != 0 for b in self.guard.bounds for e in b[1:])
        return 1 + 2 * self.guard.tabled + 0.1 * moving


class Sets:
    """Sets of ranks [steps, ranks] of consecutive steps, and numbers of each step to fit too."""

    def __init__(
        self, first: int, on: Bools, mesh: tuple[int, ...], numbers: Sequence[tuple[Ints, int]]
    ) -> None:
        self.first, self.on, self.mesh, self.numbers = first, on, mesh, numbers
        self.sizes = (*mesh, int(np.prod(mesh)))
        self.how, self.ends = boxes(on, mesh)

    def _piece(self, i: int, most: int) -> Piece:
        """Returns the longest fit from the i-th step on, of at most `most` steps."""
        t, alike = self.first + i, self.how[i : i + most] == self.how[i]
        if self.how[i] == 2:
            guard = Guard(ranks=tuple(np.flatnonzero(self.on[i]).tolist()))
            return Piece(t, t, guard, [Expr(int(x[i])) for x, _ in self.numbers])
        stop = i + (len(alike) if alike.all() else int(alike.argmin()))
        axes = range(len(self.mesh)) if self.how[i] == 0 else [len(self.mesh)]
        columns = [(self.ends[i:stop, a, e], self.sizes[a]) for a in axes for e in (0, 1)]
        columns += [(x[i:stop], n) for x, n in self.numbers]
        ways = [line(x, n, t, self.mesh[1:]) for x, n in columns]
        many = min(length for length, _ in ways)
        fits = [
            e if length == many else line(x[:many], n, t, self.mesh[1:])[1]
            for (length, e), (x, n) in zip(ways, columns, strict=True)
        ]
        low, high = self.ends[i : i + many].transpose(2, 1, 0)
        said = []
        for k, axis in enumerate(axes):  # bounds that exclude nothing are omitted
            cyclic = (low[axis] > high[axis]).any()
            pair = zip(fits[2 * k :], (Expr(), Expr(self.sizes[axis] - 1)), strict=False)
            first, last = (e if cyclic or e != end else None for e, end in pair)
            if first or last:
                said.append((axis if axis < len(self.mesh) else -1, first, last))
        return Piece(t, t + many - 1, Guard(tuple(said)), fits[2 * len(axes) :])

    def pieces(self) -> list[Piece] | None:
        """Returns the fewest pieces; None if they need a list of ranks per step."""
        pieces, steps = self._simplest(), len(self.on)
        if sum(1 + 2 * p.guard.tabled for p in pieces) <= 3:
            return pieces
        fits = [line(x, n, self.first) for x, n in self.numbers]
        if any(many < steps for many, _ in fits):
            return pieces
        spans = self._spans()
        last = self.first + steps - 1
        return [Piece(self.first, last, spans, [e for _, e in fits])] if spans else None

    def _simplest(self) -> list[Piece]:
        """Returns the fewest and simplest pieces; any two steps fit some slope."""
        n, options, begins = len(self.on), dict[int, list[Piece]](), {0}  # ends of other pieces
        for i in range(n):
            if i not in begins:
                continue
            whole = self._piece(i, n)
            if (end := whole.last - self.first + 1) == n and not i:
                return [whole]
            few = range(1, min(end - i, 3)) if self.mesh[1:] else ()
            options[i] = [*(self._piece(i, most) for most in few), whole]
            begins |= {piece.last - self.first + 1 for piece in options[i]}
        best: dict[int, tuple[float, list[Piece]]] = {n: (0.0, [])}
        for i, pieces in reversed(options.items()):
            rests = [(piece, *best[piece.last - self.first + 1]) for piece in pieces]
            sums = [(piece.weight + weight, [piece, *rest]) for piece, weight, rest in rests]
            best[i] = min(sums, key=itemgetter(0))
        return best[0][1]

    def _spans(self) -> Guard | None:
        """Returns first and last step of each rank as data; None if a rank pauses."""
        steps = [np.flatnonzero(column) for column in self.on.T]
        if any(len(s) and s[-1] - s[0] + 1 > len(s) for s in steps):
            return None
        ends = [(int(s[0]), int(s[-1])) if len(s) else (1, 0) for s in steps]
        return Guard(spans=tuple((self.first + a, self.first + b) for a, b in ends))


def runs(steps: Sequence[int]) -> Iterator[list[int]]:
    """Yields runs of consecutive steps, ascending."""
    for _, group in groupby(enumerate(sorted(steps)), lambda p: p[1] - p[0]):
        yield [t for _, t in group]
