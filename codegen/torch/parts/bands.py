"""Cuts a rectangle of queries and keys into kernel calls under a mask of boxes."""

from functools import cache
from itertools import accumulate, pairwise, product
from typing import Any

BOXES: tuple[tuple[int, ...], ...] = ()
SEQ = KV_SEQ = 1 << 40
WINDOWS = True


@cache
def tiles(
    q: tuple[range, ...], kv: tuple[range, ...], from_end: bool = False, keep_windows: bool = False
) -> list[Any]:
    """Return the kernel calls (rows, cols, band); band True: causal, the last row sees all columns.

    from_end: causal calls may have more columns than rows; otherwise they are square.
    keep_windows: the kernel takes a window as an argument; otherwise windows are cut into strips.
    """
    calls = list[Any]()
    rows, cols = (zip(accumulate(map(len, x), initial=0), x, strict=False) for x in (q, kv))
    for (i0, i1, j0, j1, *ends), (row, queries), (col, keys) in product(BOXES, rows, cols):
        a, b = (len(range(queries.start, min(i, queries.stop), queries.step)) for i in (i0, i1))
        c, d = (len(range(keys.start, min(j, keys.stop), keys.step)) for j in (j0, j1))
        last = (queries.start + ends[1] - keys.start) // queries.step  # last column that row 0 sees
        if WINDOWS:
            first = -((keys.start - queries.start - ends[0]) // queries.step)
            b, c = min(b, d - first), max(c, a + first)
        a, d = max(a, c - last), min(d, b + last)
        edge = a + last if a + last < d - 1 else d  # all rows see all columns before this one
        end = a + d - edge  # rows from this one on see all columns
        if from_end:
            edge = c
        parts: Any = [(a, b, c, edge, False), (a, end, edge, d, True), (end, b, edge, d, False)]
        if WINDOWS:
            low, high = b - 1 + first > c, a + last < d - 1  # True if the bound hides a pair
            if low or (keep_windows and high and ends[0] > -max(SEQ, KV_SEQ)):
                parts = window((a, b, c, d), (first, last), keep_windows) if first <= last else []
        for i, j, m, n, band in parts:
            if i < j and m < n:
                calls.append((slice(row + i, row + j), slice(col + m, col + n), band))
    for side in (1, 0, 1):
        for n in range(len(calls) - 1, 0, -1):  # join adjacent full calls
            (*a, band), (*b, other) = calls[n - 1 : n + 1]
            follows = a[side].stop == b[side].start and a[1 - side] == b[1 - side]
            if follows and band is other is False:
                a[side] = slice(a[side].start, b[side].stop)
                calls[n - 1 : n + 1] = [(*a, False)]
    return calls


if WINDOWS:

    def window(box: tuple[int, ...], ends: tuple[int, int], keep_windows: bool) -> list[Any]:
        """Return the calls of a box in which row r sees the columns r + first..r + last."""
        (a, b, c, d), (first, last), calls = box, ends, list[Any]()
        if keep_windows:
            # One call, but with more rows than columns kernels do not accept a larger upper bound.
            far = b - a > d - c and a + last >= min(d - 1, 2 * d - c - (b - a))
            inner = {max(d - 1 - last, a), min(c - first + 1, b)} if far else {a, b}
            cuts = sorted({a, b} | inner)
        else:
            # Strips with as many rows as the width of the window.
            cuts = [*range(a, b, max(1024, last - first + 1)), b]
        for i, j in pairwise(cuts):
            m, n = max(i + first, c), min(j + last, d)
            full = keep_windows and j - 1 + first <= m and i + last >= n - 1
            calls.append((i, j, m, n, not full and (i + first - m, i + last - m)))
        return calls
