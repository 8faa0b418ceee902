"""Cuts a rectangle of queries and keys into the kernel calls that a mask of boxes leaves of it."""

from functools import cache
from itertools import accumulate, product
from typing import Any

BOXES: tuple[tuple[int, ...], ...] = ()
WINDOWS = True


@cache
def tiles(q: tuple[range, ...], kv: tuple[range, ...]) -> list[Any]:
    """The kernel calls (rows, cols, band) of some tokens; band True: row r sees columns 0..r."""
    calls = list[Any]()
    rows, cols = (zip(accumulate(map(len, x), initial=0), x, strict=False) for x in (q, kv))
    for (i0, i1, j0, j1, *ends), (row, own), (col, others) in product(BOXES, rows, cols):
        a, b = (len(range(own.start, min(i, own.stop), own.step)) for i in (i0, i1))
        c, d = (len(range(others.start, min(j, others.stop), others.step)) for j in (j0, j1))
        last = (own.start + ends[1] - others.start) // own.step  # that row 0 sees
        if WINDOWS:
            first = -((others.start - own.start - ends[0]) // own.step)
            b, c = min(b, d - first), max(c, a + first)
        a, d = max(a, c - last), min(d, b + last)
        edge = a + last if a + last < d - 1 else d  # all rows see the columns before it
        end = a + d - edge  # the rows from here on see all columns
        parts: Any = [(a, b, c, edge, False), (a, end, edge, d, True), (end, b, edge, d, False)]
        if WINDOWS and b - 1 + first > c:  # a window: as many rows at a time as it is wide
            parts, step = [], max(1024, last - first + 1)
            for i in range(a, b, step) if first <= last else ():
                j, m = min(i + step, b), max(i + first, c)
                parts.append((i, j, m, min(j + last, d), (i + first - m, i + last - m)))
        for i, j, m, n, band in parts:
            if i < j and m < n:
                calls.append((slice(row + i, row + j), slice(col + m, col + n), band))
    for side in (1, 0, 1):
        for n in range(len(calls) - 1, 0, -1):  # full calls that go on in each other are one
            (*a, band), (*b, other) = calls[n - 1 : n + 1]
            follows = a[side].stop == b[side].start and a[1 - side] == b[1 - side]
            if follows and band is other is False:
                a[side] = slice(a[side].start, b[side].stop)
                calls[n - 1 : n + 1] = [(*a, False)]
    return calls
