"""Fits expressions to numbers that depend on step and rank, and guards to sets of ranks.

Of fits of equal length, prefers the step itself to the step of an outer loop, and no modulus.

guards    {step: ranks}, consecutive steps  -->  the fewest [first, last, guard], with intervals
          that move with the step; or, instead of three or more, a first and last step per rank
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter

import numpy as np

from ringloom.planner.loops.form import Expr, Guard, Ints
from ringloom.planner.loops.values import Bools

NO_MODULUS = 1 << 40  # larger than all numbers


def fit_line(
    values: Sequence[int] | Ints, modulo: int = 0, start: int = 0, periods: Sequence[int] = ()
) -> tuple[int, Expr]:
    """Returns the largest number of first values that fit an expression, and the expression."""
    xs = np.asarray(values, np.intp)
    steps, clocks = np.diff(xs), [(1, 0)]
    if not steps.any():
        return len(xs), Expr(int(xs[0]))
    if (steps != steps[0]).any():
        clocks += [(p, phase) for p in periods for phase in range(p)]
    period_of, phase_of = np.array(clocks).T[:, :, None]
    ticks = np.diff((start + np.arange(len(xs)) - phase_of) // period_of)  # [clocks, steps]
    increment = np.where(ticks.any(axis=1), steps[ticks.argmax(axis=1)], 0)
    moduli = np.array([NO_MODULUS, modulo] if modulo else [NO_MODULUS])
    slopes = nearest_residue(increment[:, None], moduli)  # [clocks, moduli]
    is_wrong = (steps - slopes[:, :, None] * ticks[:, None]) % moduli[:, None] != 0
    lengths = 1 + np.where(is_wrong.any(axis=2), is_wrong.argmax(axis=2), len(steps))
    longest, m = divmod(int(lengths.argmax()), len(moduli))  # the first of equals is the simplest
    (period, phase), slope = clocks[longest], int(slopes[longest, m])
    if not slope:
        return int(lengths.max()), Expr(int(xs[0]))
    first = int(nearest_residue(xs[:1] - slope * ((start - phase) // period), moduli[m])[0])
    return int(lengths.max()), Expr(first, slope, (), modulo * m, (), period, phase)


def nearest_residue(x: Ints, modulo: Ints) -> Ints:
    """Returns the residues of smallest absolute value."""
    return (x + modulo // 2) % modulo - modulo // 2


def fit_plane(coordinates: Ints, t: Ints, values: Ints) -> Expr | None:
    """Fits an expression of coordinates [n, axes] and steps [n] to all values [n], or None."""
    if (values == values[0]).all():
        return Expr(int(values[0]))
    columns = np.column_stack([coordinates, t])
    first = columns[0]
    varying = np.flatnonzero((columns != first).any(axis=0))
    offsets, changes = columns[:, varying] - first[varying], values - values[0]
    matrix, vector = (offsets.T @ x for x in (offsets, changes))  # smaller than `offsets`
    factors = np.zeros(len(first), np.intp)
    solution = np.linalg.lstsq(matrix.astype(float), vector.astype(float), rcond=None)[0]
    factors[varying] = np.rint(solution)
    if (offsets @ factors[varying] != changes).any():
        return None
    axes = tuple(factors[:-1].tolist()) if factors[:-1].any() else ()
    return Expr(int(values[0] - factors @ first), int(factors[-1]), axes)


def find_intervals(members: Bools) -> tuple[Ints, Ints, Bools]:
    """Returns the first and last index of each set [n, indices], and True for cyclic intervals."""

    def span(x: Bools) -> tuple[Ints, Ints, Ints]:
        return x.argmax(axis=1), x.shape[1] - 1 - x[:, ::-1].argmax(axis=1), x.sum(axis=1)

    low, high, size = span(members)
    start, end, size_outside = span(~members)
    is_plain = high - low + 1 == size
    is_cyclic = ~is_plain & (end - start + 1 == size_outside)
    return (
        np.where(is_cyclic, end + 1, low),
        np.where(is_cyclic, start - 1, high),
        is_plain | is_cyclic,
    )


def find_boxes(members: Bools, mesh: tuple[int, ...]) -> tuple[Ints, Ints]:
    """Returns the kind of each set of ranks [n, ranks], and the ends of its intervals.

    0: intervals along all axes, 1: an interval of ranks, 2: neither. The ends are the first and
    last coordinate along each axis, then the first and last rank: [n, axes + 1, 2].
    """
    cube, axes = members.reshape(-1, *mesh), range(len(mesh))
    sides = [np.asarray(cube.any(axis=tuple(j + 1 for j in axes if j != i))) for i in axes]
    ends = [find_intervals(side) for side in (*sides, members)]
    is_box = np.prod([s.sum(axis=1) for s in sides], axis=0) == members.sum(axis=1)
    *along_axes, of_ranks = [is_interval for *_, is_interval in ends]
    kinds = np.where(is_box & np.all(along_axes, axis=0), 0, np.where(of_ranks, 1, 2))
    return kinds, np.stack([np.stack(pair, axis=1) for *pair, _ in ends], axis=1)


@dataclass(frozen=True)
class Piece:
    """Steps first..last with the same guard, and the fits of each step's numbers."""

    first: int
    last: int
    guard: Guard
    fits: list[Expr]

    @property
    def weight(self) -> float:
        moving_bounds = sum(e is not None and e.step != 0 for b in self.guard.bounds for e in b[1:])
        return 1 + 2 * self.guard.tabled + 0.1 * moving_bounds


class Sets:
    """The sets of ranks of consecutive steps [steps, ranks], and other numbers of each step."""

    def __init__(
        self, first: int, members: Bools, mesh: tuple[int, ...], numbers: Sequence[tuple[Ints, int]]
    ) -> None:
        self.first, self.members, self.mesh, self.numbers = first, members, mesh, numbers
        self.sizes = (*mesh, int(np.prod(mesh)))
        self.kinds, self.ends = find_boxes(members, mesh)

    def _longest_piece(self, i: int, most: int) -> Piece:
        """Returns the longest fit of at most `most` steps, starting at the i-th step."""
        t, is_alike = self.first + i, self.kinds[i : i + most] == self.kinds[i]
        if self.kinds[i] == 2:
            guard = Guard(ranks=tuple(np.flatnonzero(self.members[i]).tolist()))
            return Piece(t, t, guard, [Expr(int(x[i])) for x, _ in self.numbers])
        stop = i + (len(is_alike) if is_alike.all() else int(is_alike.argmin()))
        axes = range(len(self.mesh)) if self.kinds[i] == 0 else [len(self.mesh)]
        columns = [(self.ends[i:stop, a, e], self.sizes[a]) for a in axes for e in (0, 1)]
        columns += [(x[i:stop], n) for x, n in self.numbers]
        column_fits = [fit_line(x, n, t, self.mesh[1:]) for x, n in columns]
        shortest = min(length for length, _ in column_fits)
        fits = [
            e if length == shortest else fit_line(x[:shortest], n, t, self.mesh[1:])[1]
            for (length, e), (x, n) in zip(column_fits, columns, strict=True)
        ]
        low, high = self.ends[i : i + shortest].transpose(2, 1, 0)
        bounds = []
        for k, axis in enumerate(axes):  # omits bounds that exclude no rank
            cyclic = (low[axis] > high[axis]).any()
            pair = zip(fits[2 * k :], (Expr(), Expr(self.sizes[axis] - 1)), strict=False)
            first, last = (e if cyclic or e != end else None for e, end in pair)
            if first or last:
                bounds.append((axis if axis < len(self.mesh) else -1, first, last))
        return Piece(t, t + shortest - 1, Guard(tuple(bounds)), fits[2 * len(axes) :])

    def pieces(self) -> list[Piece] | None:
        """Returns the fewest pieces; None if they need a list of ranks per step."""
        pieces, steps = self._cheapest_pieces(), len(self.members)
        if sum(1 + 2 * p.guard.tabled for p in pieces) <= 3:
            return pieces
        fits = [fit_line(x, n, self.first) for x, n in self.numbers]
        if any(length < steps for length, _ in fits):
            return pieces
        spans = self._rank_spans()
        last = self.first + steps - 1
        return [Piece(self.first, last, spans, [e for _, e in fits])] if spans else None

    def _cheapest_pieces(self) -> list[Piece]:
        """Returns the fewest and simplest pieces; any two steps fit some slope."""
        n, options = len(self.members), dict[int, list[Piece]]()
        starts = {0}  # also the ends of pieces
        for i in range(n):
            if i not in starts:
                continue
            piece = self._longest_piece(i, n)
            if (end := piece.last - self.first + 1) == n and not i:
                return [piece]
            lengths = range(1, min(end - i, 3)) if self.mesh[1:] else ()
            options[i] = [*(self._longest_piece(i, most) for most in lengths), piece]
            starts |= {piece.last - self.first + 1 for piece in options[i]}
        cheapest: dict[int, tuple[float, list[Piece]]] = {n: (0.0, [])}
        for i, pieces in reversed(options.items()):
            continuations = [(piece, *cheapest[piece.last - self.first + 1]) for piece in pieces]
            totals = [
                (piece.weight + weight, [piece, *rest]) for piece, weight, rest in continuations
            ]
            cheapest[i] = min(totals, key=itemgetter(0))
        return cheapest[0][1]

    def _rank_spans(self) -> Guard | None:
        """Returns the first and last step of each rank as data; None if a rank pauses."""
        steps = [np.flatnonzero(column) for column in self.members.T]
        if any(len(s) and s[-1] - s[0] + 1 > len(s) for s in steps):
            return None
        ends = [(int(s[0]), int(s[-1])) if len(s) else (1, 0) for s in steps]
        return Guard(spans=tuple((self.first + a, self.first + b) for a, b in ends))


def consecutive_runs(steps: Sequence[int]) -> Iterator[list[int]]:
    """Yields runs of consecutive steps, ascending."""
    for _, group in groupby(enumerate(sorted(steps)), lambda p: p[1] - p[0]):
        yield [t for _, t in group]
