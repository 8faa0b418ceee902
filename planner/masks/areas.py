"""Areas: counts of the pairs that a mask allows between sets of positions, in closed form.

A piece of a region is a box cut by a band. Clipped to the box, a query range and a key range are
arithmetic progressions, and the number of their pairs with j - i <= c is a sum of clamped floors:

    sum over a < na of clamp(floor((c - b0 + a0 + sa a) / sb) + 1, 0, nb)

With equal steps, the floor is a + constant, and the sum is a difference of two clamped triangles.
With unequal steps, the sum is a floor sum, which Euclid's algorithm evaluates in logarithmic time.

All results are exact in int64. The positions of a side are within +-2**31 and span at most 2**31,
so differences stay below 2**33, and areas and their partial sums within 2**62. The sentinel 2**40
is added and compared, but never multiplied.
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
    """Arithmetic progressions start + step * k, 0 <= k < size; `owner` is the number of a set."""

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


def count_pairs(region: Region, q: Sequence[Ranges], kv: Sequence[Ranges]) -> Ints:
    """Counts the allowed pairs of each query set with each key set: int64 [len(q), len(kv)].

    The ranges of a set must be disjoint; query positions are aligned. Raises PlanError for
    positions outside +-2**31 and for sets that span more than 2**31.
    """
    rows, columns = to_runs(q), to_runs(kv)
    total = np.zeros((len(q), len(kv)), np.int64)
    pieces = region.pieces
    boxes = _are_plain_boxes(pieces, rows, columns)
    if boxes.any():
        total += _count_in_boxes(pieces[boxes], rows, columns, total.shape)
        pieces = pieces[~boxes]
    flat = total.reshape(-1)
    for strips, bands, low, high in _clip_to_pieces(pieces, rows):
        first = np.maximum(low, strips.stop - 1 + bands[0])  # all queries of a strip see the keys
        last = np.minimum(high, strips.start + bands[1] + 1)  # from first to last - 1
        for at, column in overlaps(low, high, columns.start, columns.stop):
            is_full = (columns.start[column] >= first[at]) & (columns.stop[column] <= last[at])
            count = strips.size[at] * columns.size[column]
            cut = row_index(~is_full)
            strip, right = at[cut], columns.take(column[cut])
            right = right.clip(low[strip], high[strip])
            count[cut] = _count_between(strips.take(strip), right, *bands[:, strip])
            np.add.at(flat, strips.owner[at] * len(kv) + columns.owner[column], count)
    return total


def count_positions(sets: Sequence[Ranges]) -> Ints:
    """Counts the positions in each set: int64 [len(sets)]."""
    return np.array([sum(len(r) for r in ranges) for ranges in sets], np.int64)


def to_runs(sets: Sequence[Ranges]) -> Runs:
    """Returns all non-empty ranges of the sets; reverses descending ranges."""
    ordered = [
        (owner, r if r.step > 0 else r[::-1]) for owner, rs in enumerate(sets) for r in rs if r
    ]
    least = min((r[0] for _, r in ordered), default=0)
    most = max((r[-1] for _, r in ordered), default=0)
    if least < -LIMIT or most >= LIMIT or most - least >= LIMIT:
        raise PlanError(f"positions {least} to {most} exceed the limit of 2**31 tokens")
    table = [(owner, r.start, r.step if len(r) > 1 else 1, len(r)) for owner, r in ordered]
    return Runs(*np.array(table, np.int64).reshape(-1, 4).T.copy())


def _clip_to_pieces(pieces: Ints, rows: Runs) -> Iterator[tuple[Runs, Ints, Ints, Ints]]:
    """Clips query runs to the pieces that overlap them; yields strips, bands [2, n], key bounds."""
    for piece, row in overlaps(pieces[:, 0], pieces[:, 1], rows.start, rows.stop):
        i0, i1, j0, j1, lo, hi = pieces[piece].T
        strips = rows.take(row).clip(i0, i1)
        low, high = np.maximum(j0, strips.start + lo), np.minimum(j1, strips.stop + hi)
        hit = np.flatnonzero((strips.size > 0) & (low < high))
        yield strips.take(hit), np.stack([lo, hi])[:, hit], low[hit], high[hit]


def _count_between(queries: Runs, keys: Runs, lo: Ints, hi: Ints) -> Ints:
    """Counts the pairs with lo <= j - i <= hi of each query run with its key run: [n]."""
    count = queries.size * keys.size
    above, below = (
        row_index(keys.stop - 1 - queries.start > hi),
        row_index(keys.start - queries.stop + 1 < lo),
    )
    count[above] = _count_below(queries.take(above), keys.take(above), hi[above])
    count[below] -= _count_below(queries.take(below), keys.take(below), lo[below] - 1)
    return count


def _count_below(queries: Runs, keys: Runs, most: Ints) -> Ints:
    """Counts the pairs with j - i <= most of each query run with its key run: [n]."""
    shift = most - keys.start + queries.start
    # The step of a run with one position is arbitrary, so use the step of the other run.
    step = np.where(keys.size == 1, queries.step, keys.step)
    first = shift // step + 1
    count = _sum_ramp(first + queries.size - 1, keys.size) - _sum_ramp(first - 1, keys.size)
    general = np.flatnonzero((queries.step != keys.step) & (queries.size > 1) & (keys.size > 1))
    if general.size:
        count[general] = _sum_clamped_floors(
            queries.take(general), keys.take(general), shift[general]
        )
    return count


def _sum_ramp(last: Ints, most: Ints) -> Ints:
    """Sums clamp(u, 0, most) over all u <= last: a triangle, then a plateau."""
    side = np.clip(last, 0, most)
    return np.asarray(side * (side + 1) // 2 + np.maximum(last - most, 0) * most)


def _sum_clamped_floors(queries: Runs, keys: Runs, shift: Ints) -> Ints:
    """Sums clamp((shift + queries.step a) // keys.step + 1, 0, keys.size) over a < queries.size."""
    first = np.clip(-(shift // queries.step), 0, queries.size)
    span = keys.step * (keys.size - 1)
    last = np.clip(-((shift - span) // queries.step), first, queries.size)
    rising = last - first
    floors = _sum_floors(rising, keys.step, queries.step, shift + first * queries.step)
    return np.asarray(floors + rising + (queries.size - last) * keys.size)


def _sum_floors(n: Ints, m: Ints, a: Ints, b: Ints) -> Ints:
    """Sums (a k + b) // m over k < n, for a, b >= 0 < m, by Euclid's algorithm.

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
        is_active = n > 0
        live, n, m, a, b = live[is_active], n[is_active], m[is_active], a[is_active], b[is_active]
    return total


def _are_plain_boxes(pieces: Ints, rows: Runs, columns: Runs) -> NDArray[np.bool_]:
    """Returns True for boxes without bands if runs are strided.

    Nearly every strided run overlaps every box, so a matrix product is faster: without it, a
    striped plan on 64 ranks under a grid of 256 x 256 cells takes 17 times as long.
    """
    i0, i1, j0, j1, lo, hi = pieces.T
    exact = int(rows.size.sum()) * int(columns.size.sum()) < 2**53
    strided = bool((rows.step > 1).any() or (columns.step > 1).any())
    return np.asarray((lo <= j0 - i1 + 1) & (hi >= j1 - 1 - i0) & (exact and strided))


def _count_in_boxes(pieces: Ints, rows: Runs, columns: Runs, shape: tuple[int, int]) -> Ints:
    """Sums, over boxes, the queries of each set x the keys of each set in the box: [q, kv].

    Floats are exact here, since every sum is below 2**53.
    """
    total = np.zeros(shape)
    width = max(1, 2**21 // max(1, len(rows.start) + len(columns.start)))
    for at in range(0, len(pieces), width):
        i0, i1, j0, j1, _, _ = pieces[at : at + width].T
        total += _count_inside(i0, i1, rows, shape[0]) @ _count_inside(j0, j1, columns, shape[1]).T
    return total.astype(np.int64)


def _count_inside(low: Ints, high: Ints, run: Runs, sets: int) -> NDArray[np.float64]:
    """Counts the positions of each set in each interval: float64 [sets, intervals]."""
    columns = Runs(*(field[:, None] for field in run))
    count = columns.clip(low[None, :], high[None, :]).size
    total = np.zeros((sets, len(low)))
    np.add.at(total, run.owner, count)
    return total
