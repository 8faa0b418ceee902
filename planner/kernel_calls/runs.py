r"""Rectangles of few ranges under boxes cut by bands, in closed form.

A run is an arithmetic progression of positions. For a run of queries and a run of keys with equal
steps, a box leaves a band: row r sees the columns among r + lo..r + hi, if they exist.

        columns                    band  ::= False      every row sees every column
      +-----------+                        | True       a square: the last row sees all columns,
 rows |\ hi       |                        |            each earlier row one column fewer
      | \\\       |                        | (lo, hi)   row r sees the columns r + lo..r + hi,
      |  lo \     |                                     and every row sees at least one column
      +-----------+        a triangle is a full call, a causal call and another full call

Kernels that align causal masks with the last row accept more columns than rows, and compute the
first two calls of a triangle in a single call.

Emitted loop programs cut rectangles in the same way at run time.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, pairwise
from math import lcm
from typing import Literal, NamedTuple

import numpy as np

from ringloom.planner.masks.regions import FAR, Ints

STRIP = 1024  # fewest rows of a window call, as a kernel may need the window as a bias
Band = bool | tuple[int, int]
Kind = Literal["full", "causal", "window", "masked"]
Box = Sequence[int]  # i0, i1, j0, j1, lo, hi: i0 <= i < i1, j0 <= j < j1, lo <= j - i <= hi


class Takes(NamedTuple):
    """Calls that kernels accept besides full calls and square causal calls."""

    windows: bool = False  # windows as an argument: a single call for two runs
    bottom_right: bool = False  # causal calls with more columns than rows; the last row sees all


PLAIN = Takes()


class Run(NamedTuple):
    """Some rows or columns of a rectangle (`at`) and their positions, ranges of equal length."""

    at: range
    positions: range

    def part(self, first: int, last: int) -> "Run":
        """Returns the entries first..last - 1."""
        return Run(self.at[first:last], self.positions[first:last])

    def between(self, low: int, high: int) -> "Run":
        """Returns the part at positions low..high - 1."""
        x = self.positions
        first, last = (min(max(-((x.start - end) // x.step), 0), len(x)) for end in (low, high))
        return self.part(first, last)

    def interleave(self, step: int) -> list["Run"]:
        """Returns the run as interleaved runs of a larger step."""
        n = step // self.positions.step
        starts = range(min(n, len(self.positions)))
        return [Run(self.at[first::n], self.positions[first::n]) for first in starts]


class Call(NamedTuple):
    """A kernel call on some rows and columns of a rectangle; band None: masked by positions."""

    rows: range
    columns: range
    band: Band | None

    @property
    def kind(self) -> Kind:
        """The kind of mask: full, causal, window or masked."""
        if self.band is None:
            return "masked"
        return ("full", "causal")[self.band] if isinstance(self.band, bool) else "window"


def runs(parts: Sequence[range]) -> list[Run]:
    """Converts ranges of positions to consecutive runs of rows or columns."""
    ends = accumulate(map(len, parts), initial=0)
    return [Run(range(a, b), x) for (a, b), x in zip(pairwise(ends), parts, strict=True)]


def ascend(parts: Iterable[range]) -> bool:
    """Returns True if ranges are in ascending order and do not interleave."""
    return all(a[-1] < b[0] for a, b in pairwise(parts))


def band_calls(
    rows: Sequence[Run], columns: Sequence[Run], boxes: Ints, takes: Takes = PLAIN
) -> list[Call]:
    """Cuts a rectangle of runs under disjoint boxes [n, 6] and joins adjacent full calls.

    Query positions must be aligned with key positions.
    """
    calls = list[Call]()
    row_parts = _parts_in(rows, boxes[:, 0], boxes[:, 1])
    column_parts = _parts_in(columns, boxes[:, 2], boxes[:, 3])
    for n in sorted(row_parts.keys() & column_parts.keys()):
        halves = _split_halves(row_parts[n]), _split_halves(column_parts[n])
        calls += _halved_calls(*halves, boxes[n].tolist(), takes)
    for side in (1, 0, 1):
        calls = _join_full(calls, side)
    return calls


def _parts_in(runs: Sequence[Run], low: Ints, high: Ints) -> dict[int, list[Run]]:
    """Returns the parts of runs in each non-empty interval low..high - 1 [n], by number.

    Skips intervals outside a run, since a run overlaps few of many documents.
    """
    parts = defaultdict[int, list[Run]](list)
    for run in (run for run in runs if run.at):
        numbers = np.flatnonzero((low <= run.positions[-1]) & (run.positions[0] < high))
        for n, *ends in np.stack([numbers, low[numbers], high[numbers]], axis=1).tolist():
            if (part := run.between(*ends)).at:
                parts[n].append(part)
    return parts


def _join_full(calls: Iterable[Call], side: int) -> list[Call]:
    """Joins full calls that are adjacent in rows (side 0) or columns (side 1)."""
    joined = list[Call]()
    for b in calls:
        a = joined[-1] if joined else b
        a_sides, b_sides = (a.rows, a.columns), (b.rows, b.columns)
        is_full = a.band is b.band is False and {x.step for x in a_sides + b_sides} == {1}
        is_adjacent = a_sides[side].stop == b_sides[side].start
        if is_full and is_adjacent and a_sides[1 - side] == b_sides[1 - side]:
            union = range(a_sides[side].start, b_sides[side].stop)
            joined[-1] = Call(a.rows, union, False) if side else Call(union, a.columns, False)
        else:
            joined.append(b)
    return joined


class Half(NamedTuple):
    """Runs, their halves, and first and last position; `at` is empty if the runs have gaps."""

    runs: Sequence[Run]
    first: int
    last: int
    at: range
    halves: tuple["Half", ...] = ()


def _split_halves(runs: Sequence[Run]) -> Half:
    """Splits runs into halves recursively, down to single runs."""
    if not (count := len(runs) // 2):
        return Half(runs, runs[0].positions[0], runs[0].positions[-1], runs[0].at)
    a, b = halves = _split_halves(runs[:count]), _split_halves(runs[count:])
    at = range(a.at.start, b.at.stop) if a.at and b.at and a.at.stop == b.at.start else range(0)
    return Half(runs, min(a.first, b.first), max(a.last, b.last), at, halves)


def _halved_calls(rows: Half, columns: Half, box: Box, takes: Takes) -> Iterator[Call]:
    """Yields the calls in a box; splits halves until they are full or single runs."""
    least, most = columns.first - rows.last, columns.last - rows.first
    if most < box[4] or least > box[5]:
        return
    if box[4] <= least and most <= box[5] and columns.at:
        yield from (Call(run.at, columns.at, False) for run in rows.runs)
    elif rows.halves:
        for half in rows.halves:
            yield from _halved_calls(half, columns, box, takes)
    elif columns.halves:
        for half in columns.halves:
            yield from _halved_calls(rows, half, box, takes)
    else:
        yield from box_calls(rows.runs[0], columns.runs[0], box, takes)


def box_calls(rows: Run, columns: Run, box: Box, takes: Takes = PLAIN) -> Iterator[Call]:
    """Yields the calls of two runs in a box."""
    (*_, lo, hi), i, j = box, rows.positions, columns.positions
    if j[-1] - i[0] < lo or j[0] - i[-1] > hi:
        return
    if lo <= j[0] - i[-1] and j[-1] - i[0] <= hi:
        yield Call(rows.at, columns.at, False)
    elif i.step != j.step and len(i) > 1 < len(j):
        step = lcm(i.step, j.step)
        for row_run in rows.interleave(step):
            for column_run in columns.interleave(step):
                yield from box_calls(row_run, column_run, box, takes)
    else:
        step, offset = (i if len(i) > 1 else j).step, j[0] - i[0]
        takes = takes._replace(windows=takes.windows and lo > -FAR)
        low, high = -((offset - lo) // step), (hi - offset) // step
        yield from banded_calls(rows, columns, low, high, takes)


def banded_calls(rows: Run, columns: Run, lo: int, hi: int, takes: Takes) -> Iterator[Call]:
    """Yields the calls in which row r sees the existing columns among r + lo..r + hi."""
    height, width = len(rows.at), len(columns.at)
    top, left = max(0, -hi), max(0, lo)
    rows = rows.part(top, min(height, width - lo))
    columns = columns.part(left, min(width, height + hi))
    height, width, lo, hi = len(rows.at), len(columns.at), lo + top - left, hi + top - left
    if lo > hi or not height or not width:
        return
    if takes.windows and (lo > 1 - height or hi < width - 1):
        if height > width and hi >= min(width - 1, 2 * width - height):
            # With more rows than columns, kernels do not accept larger upper bounds.
            for i, j in pairwise(sorted({0, max(width - 1 - hi, 0), min(1 - lo, height), height})):
                yield from banded_calls(rows.part(i, j), columns, lo + i, hi + i, takes)
        else:
            yield Call(rows.at, columns.at, (lo, hi))
    elif lo > 1 - height:
        yield from _strips(rows.at, columns.at, lo, hi)
    elif hi >= width - 1:
        yield Call(rows.at, columns.at, False)
    else:
        yield from triangle_calls(rows.at, columns.at, hi, takes.bottom_right)


def _strips(rows: range, columns: range, lo: int, hi: int) -> Iterator[Call]:
    """Cuts a window into strips as high as the window is wide."""
    for top in range(0, len(rows), step := max(STRIP, hi - lo + 1)):
        part, left = rows[top : top + step], max(0, top + lo)
        offset = top - left
        yield Call(part, columns[left : top + len(part) + hi], (lo + offset, hi + offset))


def triangle_calls(rows: range, columns: range, hi: int, bottom_right: bool) -> Iterator[Call]:
    """Yields the calls if row 0 sees the columns 0..hi, and each later row one column more."""
    causal_rows = len(columns) - hi
    if bottom_right:
        hi = 0
    if hi > 0:
        yield Call(rows, columns[:hi], False)
    yield Call(rows[:causal_rows], columns[hi:], True)
    if causal_rows < len(rows):
        yield Call(rows[causal_rows:], columns[hi:], False)
