"""Rectangles whose rows see no band: strips of rows, full where all see the same, masked beside.

Positions that interleave, as stripes of several tokens do, would fall into very many small calls.
Instead a strip of at most TILE rows is a full call for the columns that every row of it sees, and
masked calls, under an explicit mask, for what is left at its sides; or one masked call, where that
looks at less.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from planner.kernel_calls.runs import Call
from planner.masks.regions import Ints

Spans = tuple[Ints, Ints]  # of each row, the first column that it sees and the one after the last
TILE = 512  # rows of a masked call: bounds its mask, and the work done on what it hides
EACH = 20_000  # pairs that one call more is worth


def strip_calls(q: Ints, kv: Ints, boxes: Ints) -> list[Call]:
    """Cuts a rectangle under disjoint boxes; q (aligned) and kv: ascending positions."""
    spans = _seen(q, kv, boxes)
    exact = [call for first, last in spans for call in _box(first, last, 0)]
    pairs = sum(last - first for first, last in spans)  # that each row sees
    if _cost(exact) == np.sum(pairs) + EACH * -(-np.count_nonzero(pairs) // TILE):
        return exact  # strips of TILE rows cost no less
    first, last = (np.stack(side) for side in zip(*spans, strict=True))
    whole = [
        call
        for row in range(0, len(q), TILE)
        for call in _union(first[:, row : row + TILE], last[:, row : row + TILE], row)
    ]
    return min(exact, whole, key=_cost)


def _cost(calls: Sequence[Call]) -> int:
    """Pairs that the calls look at, more for each call; masked pairs count double."""
    return sum(EACH + len(c.rows) * len(c.columns) * (1 + (c.band is None)) for c in calls)


def _seen(q: Ints, kv: Ints, boxes: Ints) -> list[Spans]:
    """Per box that is met, the columns first <= c < last that each row sees of it."""
    spans = []
    tops, ends = (np.searchsorted(q, boxes[:, side]) for side in (0, 1))
    lefts, rights = (np.searchsorted(kv, boxes[:, side]) for side in (2, 3))
    for n in np.flatnonzero((tops < ends) & (lefts < rights)).tolist():
        (*_, j0, j1, lo, hi), inside = boxes[n], slice(tops[n], ends[n])
        first, last = np.zeros(len(q), np.int64), np.zeros(len(q), np.int64)
        first[inside] = np.searchsorted(kv, np.maximum(j0, q[inside] + lo))
        last[inside] = np.searchsorted(kv, np.minimum(j1, q[inside] + hi + 1))
        if (first < last).any():
            spans.append((first, np.maximum(first, last)))
    return spans


def _box(first: Ints, last: Ints, row: int) -> Iterator[Call]:
    """Yields the calls of one box cut by a band, of whose rows the first is row `row`."""
    seen = np.flatnonzero(first < last)
    if not len(seen):
        return
    if seen[-1] - seen[0] == len(seen) - 1:
        yield from _stair(first[seen], last[seen], row + int(seen[0]))
    else:
        yield from _union(first[None], last[None], row)


def _stair(first: Ints, last: Ints, row: int) -> Iterator[Call]:
    """Yields the calls of rows from `row` on that see something, none less far than one before."""
    rows = range(row, row + len(first))
    low, high, left, right = (int(x[n]) for x in (first, last) for n in (0, -1))
    if low == high and left == right:
        yield Call(rows, range(low, left), False)
    elif len(first) > TILE:
        for a in range(0, len(first), TILE):
            yield from _stair(first[a : a + TILE], last[a : a + TILE], row + a)
    elif left - high > TILE // 4:  # what every row sees needs no mask
        yield Call(rows, range(high, left), False)
        yield from _box(first, np.full_like(first, high), row)
        yield from _box(np.full_like(last, left), last, row)
    else:
        yield Call(rows, range(low, right), None)


def _union(first: Ints, last: Ints, row: int) -> Iterator[Call]:
    """At most one call, for the rows from `row` on that see anything of boxes: [boxes, rows]."""
    visible = first < last
    seen = np.flatnonzero(visible.any(axis=0))
    if not len(seen):
        return
    rows = range(row + int(seen[0]), row + int(seen[-1]) + 1)
    begins, ends = first[visible], last[visible]
    columns = range(int(begins.min()), int(ends.max()))
    same = len(begins) == len(seen) == len(rows)  # rows without a gap, each sees one box
    alike = same and begins.max() == columns.start and ends.min() == columns.stop
    yield Call(rows, columns, False if alike else None)
