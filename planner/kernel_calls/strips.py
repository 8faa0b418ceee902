"""Rectangles without bands: strips of rows, full for common columns, masked at the sides.

Interleaved positions, such as stripes of several tokens, would make very many small calls. Instead,
a strip of at most TILE rows becomes a full call for the columns that every row sees, plus calls
under an explicit mask for the columns at its sides; or a single masked call, if that computes less.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from ringloom.planner.kernel_calls.runs import Call
from ringloom.planner.masks.regions import Ints

TILE = 512  # rows of a masked call: bounds its mask, and the work on hidden pairs
EACH = 20_000  # the cost of an additional call, in pairs


class Spans(NamedTuple):
    """Rows and the columns first..last - 1 that they see of a box, box by box."""

    row: Ints
    first: Ints
    last: Ints

    def between(self, ends: Sequence[int]) -> list["Spans"]:
        """Returns the entries between consecutive ends."""
        return [Spans(*(x[a:b] for x in self)) for a, b in pairwise(ends)]


def strip_calls(q: Ints, kv: Ints, boxes: Ints) -> list[Call]:
    """Cuts a rectangle under disjoint boxes; q (aligned) and kv are ascending positions."""
    by_box, spans = _seen(q, kv, boxes)
    exact = [call for part in by_box for call in _box(part)]
    pairs = int((spans.last - spans.first).sum())
    rows = np.count_nonzero(np.bincount(spans.row))
    if _cost(exact) == pairs + EACH * -(-rows // TILE):
        return exact  # strips of TILE rows cost no less
    order = np.argsort(spans.row, kind="stable")
    spans = Spans(*(x[order] for x in spans))
    ends = np.searchsorted(spans.row, [*range(0, len(q), TILE), len(q)])
    whole = [call for part in spans.between(ends.tolist()) for call in _union(part)]
    return min(exact, whole, key=_cost)


def _cost(calls: Sequence[Call]) -> int:
    """Returns the pairs that calls compute, masked ones double, plus `EACH` per call."""
    return sum(EACH + len(c.rows) * len(c.columns) * (1 + (c.band is None)) for c in calls)


def _seen(q: Ints, kv: Ints, boxes: Ints) -> tuple[list[Spans], Spans]:
    """Returns the spans of all rows, once split by box and once together."""
    tops, ends = (np.searchsorted(q, boxes[:, side]) for side in (0, 1))
    lefts, rights = (np.searchsorted(kv, boxes[:, side]) for side in (2, 3))
    met = np.flatnonzero((tops < ends) & (lefts < rights))
    heights = (ends - tops)[met]
    row = np.arange(heights.sum()) + np.repeat(tops[met] - np.cumsum(heights) + heights, heights)
    j0, j1, lo, hi = (np.repeat(side, heights) for side in boxes[met, 2:].T)
    first = np.searchsorted(kv, np.maximum(j0, q[row] + lo))
    last = np.searchsorted(kv, np.minimum(j1, q[row] + hi + 1))
    kept = np.flatnonzero(first < last)
    spans = Spans(row[kept], first[kept], last[kept])
    box = np.repeat(np.arange(len(met)), heights)[kept]
    marks = [0, *(np.flatnonzero(np.diff(box)) + 1).tolist(), len(box)]
    return spans.between(marks), spans


def _box(spans: Spans) -> Iterator[Call]:
    """Yields the calls for the spans of one box cut by a band."""
    row, first, last = spans
    if len(row) and row[-1] - row[0] == len(row) - 1:
        yield from _stair(first, last, int(row[0]))
    else:
        yield from _union(spans)


def _stair(first: Ints, last: Ints, row: int) -> Iterator[Call]:
    """Yields the calls of consecutive rows from `row` on with non-decreasing, non-empty spans."""
    rows = range(row, row + len(first))
    low, high, left, right = (int(x[n]) for x in (first, last) for n in (0, -1))
    if low == high and left == right:
        yield Call(rows, range(low, left), False)
    elif len(first) > TILE:
        for a in range(0, len(first), TILE):
            yield from _stair(first[a : a + TILE], last[a : a + TILE], row + a)
    elif left - high > TILE // 4:  # columns that every row sees need no mask
        yield Call(rows, range(high, left), False)
        at = np.arange(rows.start, rows.stop)
        above, below = first < high, last > left
        yield from _box(Spans(at[above], first[above], np.full(above.sum(), high)))
        yield from _box(Spans(at[below], np.full(below.sum(), left), last[below]))
    else:
        yield Call(rows, range(low, right), None)


def _union(spans: Spans) -> Iterator[Call]:
    """Yields at most one call, for all rows that see anything."""
    row, first, last = spans
    if not len(row):
        return
    rows = range(int(row[0]), int(row[-1]) + 1)
    columns = range(int(first.min()), int(last.max()))
    single = len(row) == len(rows) and bool((np.diff(row) == 1).all())  # each row sees one box
    full = single and first.max() == columns.start and last.min() == columns.stop
    yield Call(rows, columns, False if full else None)
