"""Areas: the number of pairs that a mask allows between position sets, in closed form.

A piece of a region is a box and a band. Clipped to the box, a query range and a key range are two
arithmetic progressions, and the number of their pairs with j - i <= c is a sum of clamped floors:

    sum over a < na of clamp(floor((c - b0 + a0 + sa a) / sb) + 1, 0, nb)

With equal steps the floor is a + constant, and the sum is a difference of two clamped triangles;
with unequal steps it is a floor sum, which Euclid's algorithm evaluates in logarithmic time.

Everything is exact in int64: a side's positions lie within +-2**31 and span at most 2**31, so
differences stay below 2**33, and areas and their partial sums within 2**62; the sentinel 2**40 is
only added and compared, never multiplied.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ringloom.planner.columns import row_index
from ringloom.planner.errors import PlanError
from ringloom.planner.masks.regions import Ints, Region, overlaps

Ranges = tuple[range, ...]
LIMIT = 2**31


class Runs(NamedTuple):
    """Arithmetic progressions start + step * k, 0 <= k < size, each with the set it belongs to."""

    owner: Ints
    start: Ints
    step: Ints
    size: Ints

    @property
    def stop(self) -> Ints:
        return self.start + self.step * (self.size - 1) + 1

    def take(self, at: Ints | NDArray[np.bool_] | slice) -> Runs:
        return Runs(*(field[at] for field in self))

    def clip(self, low: Ints, high: Ints) -> Runs:
        """Clips each run to its interval [low, high)."""
        first = np.clip(-((self.start - low) // self.step), 0, self.size)
        last = np.clip(-((self.start - high) // self.step), first, self.size)
        return self._replace(start=self.start + first * self.step, size=last - first)


def areas(region: Region, q: Sequence[Ranges], kv: Sequence[Ranges]) -> Ints:
    """Counts the allowed pairs of every query set and key set, int64 [len(q), len(kv)].

    The ranges of a side must be disjoint; query positions are aligned. Raises PlanError for
    positions outside +-2**31 and for a side that spans more than 2**31.
    """
    rows, columns = runs(q), runs(kv)
    total = np.zeros((len(q), len(kv)), np.int64)
    pieces = region.pieces
    boxes = _boxes_under_strides(pieces, rows, columns)
    if boxes.any():
        total += _products(pieces[boxes], rows, columns, total.shape)
        pieces = pieces[~boxes]
    flat = total.reshape(-1)
    for strips, bands, low, high in _strips(pieces, rows):
        first = np.maximum(low, strips.stop - 1 + bands[0])  # all queries of a strip see the keys
        last = np.minimum(high, strips.start + bands[1] + 1)  # from first to last - 1
        for at, column in overlaps(low, high, columns.start, columns.stop):
            whole = (columns.start[column] >= first[at]) & (columns.stop[column] <= last[at])
            count = strips.size[at] * columns.size[column]
            cut = row_index(~whole)
            strip, right = at[cut], columns.take(column[cut])
            right = right.clip(low[strip], high[strip])
            count[cut] = _between(strips.take(strip), right, *bands[:, strip])
            np.add.at(flat, strips.owner[at] * len(kv) + columns.owner[column], count)
    return total


def sizes(sets: Sequence[Ranges]) -> Ints:
    """Counts the positions of each set, int64 [len(sets)]."""
    return np.array([sum(len(r) for r in ranges) for ranges in sets], np.int64)


def runs(sets: Sequence[Ranges]) -> Runs:
    """Returns all non-empty ranges of the sets, reversed where needed to ascend."""
    ordered = [
        (owner, r if r.step > 0 else r[::-1]) for owner, rs in enumerate(sets) for r in rs if r
    ]
    least = min((r[0] for _, r in ordered), default=0)
    most = max((r[-1] for _, r in ordered), default=0)
    if least < -LIMIT or most >= LIMIT or most - least >= LIMIT:
        raise PlanError(f"positions {least} to {most} exceed the limit of 2**31 tokens")
    table = [(owner, r.start, r.step if len(r) > 1 else 1, len(r)) for owner, r in ordered]
    return Runs(*np.array(table, np.int64).reshape(-1, 4).T.copy())


def _strips(pieces: Ints, rows: Runs) -> Iterator[tuple[Runs, Ints, Ints, Ints]]:
    """Clips query runs to the pieces they overlap; yields them with bands [2, n] and key bounds."""
    for piece, row in overlaps(pieces[:, 0], pieces[:, 1], rows.start, rows.stop):
        i0, i1, j0, j1, lo, hi = pieces[piece].T
        strips = rows.take(row).clip(i0, i1)
        low, high = np.maximum(j0, strips.start + lo), np.minimum(j1, strips.stop + hi)
        hit = np.flatnonzero((strips.size > 0) & (low < high))
        yield strips.take(hit), np.stack([lo, hi])[:, hit], low[hit], high[hit]


def _between(left: Runs, right: Runs, lo: Ints, hi: Ints) -> Ints:
    """Counts pairs with lo <= j - i <= hi, one count per row of the runs."""
    count = left.size * right.size
    over, under = (
        row_index(right.stop - 1 - left.start > hi),
        row_index(right.start - left.stop + 1 < lo),
    )
    count[over] = _under_diagonal(left.take(over), right.take(over), hi[over])
    count[under] -= _under_diagonal(left.take(under), right.take(under), lo[under] - 1)
    return count


def _under_diagonal(left: Runs, right: Runs, most: Ints) -> Ints:
    """Counts the pairs with j - i <= most: those on one side of a diagonal."""
    shift = most - right.start + left.start
    # The step of a run of one position is arbitrary: use the other run's.
    step = np.where(right.size == 1, left.step, right.step)
    first = shift // step + 1
    count = _ramp(first + left.size - 1, right.size) - _ramp(first - 1, right.size)
    odd = np.flatnonzero((left.step != right.step) & (left.size > 1) & (right.size > 1))
    if odd.size:
        count[odd] = _clamped_floors(left.take(odd), right.take(odd), shift[odd])
    return count


def _ramp(last: Ints, most: Ints) -> Ints:
    """Returns the sum of clamp(u, 0, most) over all u <= last: a triangle, then a plateau."""
    side = np.clip(last, 0, most)
    return np.asarray(side * (side + 1) // 2 + np.maximum(last - most, 0) * most)


def _clamped_floors(left: Runs, right: Runs, shift: Ints) -> Ints:
    """Sums clamp((shift + left.step a) // right.step + 1, 0, right.size) over a < left.size."""
    first = np.clip(-(shift // left.step), 0, left.size)
    enough = right.step * (right.size - 1)
    last = np.clip(-((shift - enough) // left.step), first, left.size)
    rising = last - first
    floors = _floor_sums(rising, right.step, left.step, shift + first * left.step)
    return np.asarray(floors + rising + (left.size - last) * right.size)


def _floor_sums(n: Ints, m: Ints, a: Ints, b: Ints) -> Ints:
    """Returns the sums over k < n of (a k + b) // m, for a, b >= 0 < m, by Euclid's algorithm.

    Each round subtracts the multiples of m and then counts the same lattice points by columns
    instead of rows, which swaps a and m. No term exceeds the result.
    """
    total = np.zeros(len(n), np.int64)
    live = np.flatnonzero(n > 0)
    n, m, a, b = n[live], m[live], a[live], b[live]
    while live.size:
        total[live] += n * (n - 1) // 2 * (a // m) + n * (b // m)
        a, b = a % m, b % m
        top = a * n + b
        n, m, a, b = top // m, a, m, top % m
        more = n > 0
        live, n, m, a, b = live[more], n[more], m[more], a[more], b[more]
    return total


def _boxes_under_strides(pieces: Ints, rows: Runs, columns: Runs) -> NDArray[np.bool_]:
    """Returns True for boxes without bands if runs are strided: nearly every run meets every box.

    With thousands of blocks or documents a matrix product is then faster: without it, a striped
    plan on 64 ranks under a grid of 256 x 256 cells takes 17 times as long.
    """
    i0, i1, j0, j1, lo, hi = pieces.T
    exact = int(rows.size.sum()) * int(columns.size.sum()) < 2**53
    strided = bool((rows.step > 1).any() or (columns.step > 1).any())
    return np.asarray((lo <= j0 - i1 + 1) & (hi >= j1 - 1 - i0) & (exact and strided))


def _products(pieces: Ints, rows: Runs, columns: Runs, shape: tuple[int, int]) -> Ints:
    """Sums the areas of boxes: (queries of q in the box) x (keys of kv in the box); [q, kv].

    Floats are exact here since every sum is below 2**53.
    """
    total = np.zeros(shape)
    width = max(1, 2**21 // max(1, len(rows.start) + len(columns.start)))
    for at in range(0, len(pieces), width):
        i0, i1, j0, j1, _, _ = pieces[at : at + width].T
        total += _inside(i0, i1, rows, shape[0]) @ _inside(j0, j1, columns, shape[1]).T
    return total.astype(np.int64)


def _inside(low: Ints, high: Ints, run: Runs, sets: int) -> NDArray[np.float64]:
    """Counts the positions of each set in each interval, float64 [sets, intervals]."""
    tall = Runs(*(field[:, None] for field in run))
    count = tall.clip(low[None, :], high[None, :]).size
    total = np.zeros((sets, len(low)))
    np.add.at(total, run.owner, count)
    return total
