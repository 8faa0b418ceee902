"""Rectangles of interleaved positions: strips of rows, full inside, masked at the sides.

Interleaved positions, such as stripes of several tokens, would make very many small calls. Instead,
a strip of at most TILE rows becomes a full call for the columns that every row sees, and calls
under an explicit mask for the other columns; or a single masked call, if that computes less.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from ringloom.planner.kernel_calls.runs import Call
from ringloom.planner.masks.regions import Ints

TILE = 512  # rows of a masked call; limits the mask, and the work on masked-out pairs
EACH = 20_000  # the cost of an additional call, in pairs


class Spans(NamedTuple):
    """Rows, and the columns first..last - 1 that they see in a box, box by box."""

    row: Ints
    first: Ints
    last: Ints

    def split_at(self, ends: Sequence[int]) -> list["Spans"]:
        """Returns the entries between consecutive ends."""
        return [Spans(*(x[a:b] for x in self)) for a, b in pairwise(ends)]


def strip_calls(q: Ints, kv: Ints, boxes: Ints) -> list[Call]:
    """Cuts a rectangle under disjoint boxes; q (aligned) and kv are ascending positions."""
    by_box, spans = _visible_spans(q, kv, boxes)
    box_calls = [call for part in by_box for call in _box_calls(part)]
    pairs = int((spans.last - spans.first).sum())
    rows = np.count_nonzero(np.bincount(spans.row))
    if _cost(box_calls) == pairs + EACH * -(-rows // TILE):
        return box_calls  # strips of TILE rows cost no less
    order = np.argsort(spans.row, kind="stable")
    spans = Spans(*(x[order] for x in spans))
    ends = np.searchsorted(spans.row, [*range(0, len(q), TILE), len(q)])
    by_strip_calls = [call for part in spans.split_at(ends.tolist()) for call in _masked_call(part)]
    return min(box_calls, by_strip_calls, key=_cost)


def _cost(calls: Sequence[Call]) -> int:
    """Counts the pairs that calls compute, masked calls twice, plus `EACH` per call."""
    return sum(EACH + len(c.rows) * len(c.columns) * (1 + (c.band is None)) for c in calls)


def _visible_spans(q: Ints, kv: Ints, boxes: Ints) -> tuple[list[Spans], Spans]:
    """Returns the spans of each box, and the spans of all boxes together."""
    tops, ends = (np.searchsorted(q, boxes[:, side]) for side in (0, 1))
    lefts, rights = (np.searchsorted(kv, boxes[:, side]) for side in (2, 3))
    overlapping = np.flatnonzero((tops < ends) & (lefts < rights))
    heights = (ends - tops)[overlapping]
    offsets = tops[overlapping] - np.cumsum(heights) + heights
    row = np.arange(heights.sum()) + np.repeat(offsets, heights)
    j0, j1, lo, hi = (np.repeat(side, heights) for side in boxes[overlapping, 2:].T)
    first = np.searchsorted(kv, np.maximum(j0, q[row] + lo))
    last = np.searchsorted(kv, np.minimum(j1, q[row] + hi + 1))
    visible = np.flatnonzero(first < last)
    spans = Spans(row[visible], first[visible], last[visible])
    box = np.repeat(np.arange(len(overlapping)), heights)[visible]
    bounds = [0, *(np.flatnonzero(np.diff(box)) + 1).tolist(), len(box)]
    return spans.split_at(bounds), spans


def _box_calls(spans: Spans) -> Iterator[Call]:
    """Yields the calls for the spans of a box cut by a band."""
    row, first, last = spans
    if len(row) and row[-1] - row[0] == len(row) - 1:
        yield from _staircase_calls(first, last, int(row[0]))
    else:
        yield from _masked_call(spans)


def _staircase_calls(first: Ints, last: Ints, row: int) -> Iterator[Call]:
    """Yields the calls of consecutive rows, starting at `row`, with non-decreasing spans."""
    rows = range(row, row + len(first))
    low, high, left, right = (int(x[n]) for x in (first, last) for n in (0, -1))
    if low == high and left == right:
        yield Call(rows, range(low, left), False)
    elif len(first) > TILE:
        for a in range(0, len(first), TILE):
            yield from _staircase_calls(first[a : a + TILE], last[a : a + TILE], row + a)
    elif left - high > TILE // 4:  # columns that every row sees need no mask
        yield Call(rows, range(high, left), False)
        numbers = np.arange(rows.start, rows.stop)
        before, after = (
            first < high,
            last > left,
        )  # rows that see columns at the left, and at the right
        yield from _box_calls(Spans(numbers[before], first[before], np.full(before.sum(), high)))
        yield from _box_calls(Spans(numbers[after], np.full(after.sum(), left), last[after]))
    else:
        yield Call(rows, range(low, right), None)


def _masked_call(spans: Spans) -> Iterator[Call]:
    """Yields a single call for all rows of the spans, if any."""
    row, first, last = spans
    if not len(row):
        return
    rows = range(int(row[0]), int(row[-1]) + 1)
    columns = range(int(first.min()), int(last.max()))
    is_single = len(row) == len(rows) and bool((np.diff(row) == 1).all())  # each row sees one box
    is_full = is_single and first.max() == columns.start and last.min() == columns.stop
    yield Call(rows, columns, False if is_full else None)
