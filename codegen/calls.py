"""calls   a rectangle of positions, cut into kernel calls that never see an empty row.

    call ::= Call(rows, columns, kind, spans)    kind: full | causal | spans

    full     every row sees every column
    causal   as many rows as columns, row r sees columns 0..r: what flash kernels call is_causal
    spans    row r sees, for each k, the columns spans[0, k, r] <= c < spans[1, k, r]

Rows that see nothing in a rectangle are in none of its calls, so a kernel is never asked for a
softmax of nothing; a strictly causal tile loses its first row and its last column and is causal.
Emitted programs contain `causal_calls` or, where mask or layout need it, `mask_calls`.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from codegen.rows import Ints

TILE = 512  # rows of a masked call: bounds its mask, and the work done on what it hides


class Call(NamedTuple):
    """One kernel call: which rows of the queries and which columns of the keys, and how masked."""

    rows: slice | Ints
    columns: slice
    kind: str
    spans: Ints | None = None


def causal_calls(q: Ints, kv: Ints, offset: int) -> list[Call] | None:
    """The calls of a causal rectangle, or None where its diagonal is not one straight line.

    q, kv: ascending positions. Rows that see nothing come first and are left out.
    """
    # How many columns each row sees.
    seen = np.searchsorted(kv, q + offset, side="right")
    top = int(np.searchsorted(seen, 1))
    if top == len(q):
        return []
    seen, low, high = seen[top:], int(seen[top]), int(seen[-1])
    if low == high:
        return [Call(slice(top, len(q)), slice(0, high), "full")]
    if not np.array_equal(seen, np.minimum(low + np.arange(len(seen)), high)):
        return None
    calls, square = [], high - low + 1
    if low > 1:
        calls.append(Call(slice(top, len(q)), slice(0, low - 1), "full"))
    calls.append(Call(slice(top, top + square), slice(low - 1, high), "causal"))
    if top + square < len(q):
        calls.append(Call(slice(top + square, len(q)), slice(low - 1, high), "full"))
    return calls


def full_calls(q: Ints, kv: Ints, offset: int) -> list[Call]:
    """The one call of a rectangle in which everything is seen."""
    if not (len(q) and len(kv)):
        return []
    return [Call(slice(0, len(q)), slice(0, len(kv)), "full")]


def mask_calls(q: Ints, kv: Ints, offset: int, boxes: Ints) -> list[Call]:
    """The calls of a rectangle under any mask.

    q, kv: ascending positions. boxes: [n, 6], the mask as disjoint boxes cut by bands: queries
    i0 <= i < i1 and keys j0 <= j < j1 with lo <= j - i <= hi, where i is the position + offset.
    """
    spans = seen_spans(q + offset, kv, boxes)
    exact = [call for box in spans.swapaxes(0, 1) for call in box_calls(*box)]
    strips = [(spans[:, :, row : row + TILE], row) for row in range(0, len(q), TILE)]
    whole = [call for strip, row in strips for call in union_calls(strip, row)]
    return min(exact, whole, key=cost)


def cost(calls: list[Call]) -> int:
    """Pairs that the calls look at, a few thousand more for each; masked pairs count double."""
    return sum(
        20_000 + count(call.rows) * count(call.columns) * (1 + (call.kind == "spans"))
        for call in calls
    )


def count(part: slice | Ints) -> int:
    """How many rows or columns a call has."""
    return int(part.stop - part.start) if isinstance(part, slice) else len(part)


def seen_spans(i: Ints, kv: Ints, boxes: Ints) -> Ints:
    """The columns first <= c < last that each row sees of each box: [2, boxes met, rows]."""
    found = []
    for i0, i1, j0, j1, lo, hi in boxes:
        inside = (i >= i0) & (i < i1)
        first = np.searchsorted(kv, np.maximum(j0, i + lo))
        last = np.searchsorted(kv, np.minimum(j1, i + hi + 1))
        if (inside & (first < last)).any():
            found.append([first * inside, np.maximum(first, last) * inside])
    return np.array(found, np.int64).reshape(len(found), 2, len(i)).swapaxes(0, 1)


def box_calls(first: Ints, last: Ints) -> Iterator[Call]:
    """The calls of one box cut by a band: row r sees the columns first[r] <= c < last[r]."""
    seen = np.flatnonzero(first < last)
    if not len(seen):
        return
    if (np.diff(seen) == 1).all():
        yield from stair_calls(first[seen], last[seen], int(seen[0]))
    else:
        yield from union_calls(np.stack([first, last])[:, None], 0)


def stair_calls(first: Ints, last: Ints, row: int) -> Iterator[Call]:
    """The calls of rows that all see something, the first of them being row `row`."""
    rows = slice(row, row + len(first))
    low, high, left, right = first.min(), first.max(), last.min(), last.max()
    if low == high and left == right:
        yield Call(rows, slice(int(low), int(left)), "full")
    elif low == high and (last == (left + np.arange(len(last))).clip(max=right)).all():
        yield from triangle_calls(int(low), int(left), int(right), rows)
    elif len(first) > TILE:
        for a in range(0, len(first), TILE):
            yield from stair_calls(first[a : a + TILE], last[a : a + TILE], row + a)
    elif left - high > TILE // 4:  # what every row sees needs no mask
        yield Call(rows, slice(int(high), int(left)), "full")
        yield from moved_calls(first, np.full_like(first, high), row)
        yield from moved_calls(np.full_like(last, left), last, row)
    else:
        spans = np.stack([first, last])[:, None] - low
        yield Call(rows, slice(int(low), int(right)), "spans", spans)


def moved_calls(first: Ints, last: Ints, row: int) -> Iterator[Call]:
    """The calls of a box whose first row is row `row`."""
    for call in box_calls(first, last):
        moved = (
            slice(call.rows.start + row, call.rows.stop + row)
            if isinstance(call.rows, slice)
            else call.rows + row
        )
        yield call._replace(rows=moved)


def triangle_calls(low: int, left: int, right: int, rows: slice) -> Iterator[Call]:
    """Row 0 sees the columns low..left - 1, each next row one more, up to column right - 1."""
    square = right - left + 1
    if left - low > 1:
        yield Call(rows, slice(low, left - 1), "full")
    yield Call(slice(rows.start, rows.start + square), slice(left - 1, right), "causal")
    rest = slice(rows.start + square, rows.stop)
    if rest.start < rest.stop:
        yield Call(rest, slice(left - 1, right), "full")


def union_calls(spans: Ints, row: int) -> Iterator[Call]:
    """At most one call, for the rows from `row` on that see anything; spans: [2, k, rows]."""
    first, last = spans
    some = first < last
    rows = np.flatnonzero(some.any(axis=0))
    if not len(rows):
        return
    low, high = int(first[some].min()), int(last[some].max())
    order = np.argsort(~some, axis=0, kind="stable")[: int(some.sum(axis=0).max())]
    packed = np.take_along_axis(spans, np.stack([order, order]), axis=1)[:, :, rows]
    part = slice(row + int(rows[0]), row + int(rows[-1]) + 1)
    at = part if len(rows) == count(part) else rows + row
    if packed.shape[1] == 1 and (packed == packed[:, :, :1]).all():
        yield Call(at, slice(low, high), "full")
    else:
        yield Call(at, slice(low, high), "spans", (packed - low).clip(0, high - low))
