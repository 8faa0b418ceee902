"""Cuts a rectangle of queries and keys into the kernel calls that a mask of boxes leaves of it."""

from collections.abc import Iterator
from functools import cache
from typing import Any

from torch import Tensor

BOXES: tuple[tuple[int, ...], ...] = ()


def triangles(tokens: Tensor) -> Iterator[tuple[slice, slice, bool]]:
    """Each run of queries meets all keys before it, and its own up to the diagonal."""
    row = 0
    for run in tokens.tensor_split(((tokens.diff() != 1).nonzero()[:, 0] + 1).tolist()):
        rows, col, row = slice(row, row + len(run)), int(run[0]), row + len(run)
        if col:
            yield rows, slice(col), False
        yield rows, slice(col, col + len(run)), True


@cache
def tiles(queries: range, keys: range) -> list[tuple[slice, slice, Any]]:
    """The kernel calls (rows, cols, band) of a rectangle; True: row r sees the columns 0..r."""
    calls = list[tuple[slice, slice, Any]]()
    for i0, i1, j0, j1, *ends in BOXES:
        a, b = (len(range(queries.start, min(i, queries.stop), queries.step)) for i in (i0, i1))
        c, d = (len(range(keys.start, min(j, keys.stop), keys.step)) for j in (j0, j1))
        last = (queries.start + ends[1] - keys.start) // keys.step  # that row 0 sees
        first = -((keys.start - queries.start - ends[0]) // keys.step)  # windows
        b, c = min(b, d - first), max(c, a + first)  # windows
        a, d = max(a, c - last), min(d, b + last)
        if b - 1 + first > c:  # windows
            calls += strips(range(a, b), range(c, d), first, last)  # windows
            continue  # windows
        edge = a + last if a + last < d - 1 else d  # all rows see the columns before it
        end = a + d - edge  # the rows from here on see all columns
        parts = (a, b, c, edge, False), (a, end, edge, d, True), (end, b, edge, d, False)
        calls += [(slice(i, j), slice(m, n), x) for i, j, m, n, x in parts if i < j and m < n]
    return calls


@cache
def pieces_tiles(queries: tuple[range, ...], keys: tuple[range, ...]) -> list[Any]:
    """The calls of several ranges each, one after the other."""
    calls, row = list[Any](), 0
    for own in queries:
        col = 0
        for others in keys:
            for i, j, band in tiles(own, others):
                rows, cols = slice(i.start + row, i.stop + row), slice(j.start + col, j.stop + col)
                calls.append((rows, cols, band))
            col += len(others)
        row += len(own)
    return calls


def strips(rows: range, cols: range, first: int, last: int) -> Iterator[tuple[slice, slice, Any]]:
    """The calls of a window, as many rows at a time as it is wide; band: what their row 0 sees."""
    step = max(1024, last - first + 1)
    for top in rows[::step] if first <= last else ():
        bottom = min(top + step, rows.stop)
        left, right = max(top + first, cols.start), min(bottom + last, cols.stop)
        yield slice(top, bottom), slice(left, right), (top + first - left, top + last - left)
