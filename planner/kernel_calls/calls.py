"""rectangle_calls(q, kv, boxes)   cuts a rectangle of query and key blocks into kernel calls.

    full     every row sees every column
    causal   row r of a square sees the columns 0..r (is_causal in kernels); if the kernel aligns
             the mask with the last row, which sees all columns, there may be more columns than rows
    window   row r sees the columns r + lo..r + hi
    masked   at most 512 rows under an explicit mask

Every row of a full, causal or window call sees at least one column. Under a causal mask, any number
of equal blocks on the two sides forms a single triangle. `runs` cuts rectangles of few ranges in
closed form; `strips` cuts rectangles of many interleaved ranges into strips of rows.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain, pairwise

import numpy as np

from ringloom.planner.kernel_calls.runs import PLAIN, Call, Takes, ascend, band_calls, runs
from ringloom.planner.kernel_calls.strips import strip_calls
from ringloom.planner.masks.regions import FAR, Ints
from ringloom.planner.partitions import Ranges, sorted_positions

CAUSAL = np.array([[-FAR, FAR, -FAR, FAR, -FAR, 0]])
MOST_PAIRS = 64  # of runs; with more pairs, positions count as interleaved


def rectangle_calls(
    q: Sequence[Ranges],
    kv: Sequence[Ranges],
    boxes: Ints,
    masks: bool = True,
    takes: Takes = PLAIN,
) -> list[Call]:
    """Returns the calls of a rectangle of blocks under a mask.

    q, kv: positions of each block, queries aligned with the keys. boxes: [n, 6], the mask as
    disjoint boxes cut by bands. Rows and columns number the positions block by block, ascending in
    each block. masks: True if kernels accept masks. takes: other calls that kernels accept.
    """
    rows, columns = to_ranges(q), to_ranges(kv)
    is_small = len(rows) * len(columns) <= MOST_PAIRS or not masks
    calls = _causal(rows, columns, takes.bottom_right) if np.array_equal(boxes, CAUSAL) else []
    if calls and (is_small or len(calls) ** 2 <= MOST_PAIRS):
        return calls
    if is_small:
        return band_calls(runs(rows), runs(columns), boxes, takes)
    q, kv = ([(*x,)] if ascend(x) else side for x, side in ((rows, q), (columns, kv)))
    return list(_strips(q, kv, boxes))


def _causal(
    rows: Sequence[range], columns: Sequence[range], bottom_right: bool = False
) -> list[Call]:
    """Cuts ascending ranges at multiples of a step under a causal mask; [] for other ranges.

    A group consists of rows that see the same columns, then rows that see one more column each. It
    makes a full call for the common columns, and a causal call. If kernels align causal calls with
    the last row, and the columns start at the first column, a single causal call is sufficient.
    Loop programs do the same.
    """
    step = max((x.step for x in (*rows, *columns) if len(x) > 1), default=1)
    remainders = {n % step for x in (*rows, *columns) for n in x[:2]}
    if len(remainders) != 1 or not (ascend(rows) and ascend(columns)):
        return []
    rows, columns = ([range(x[0] // step, x[-1] // step + 1) for x in y] for y in (rows, columns))
    offsets, starts = [*accumulate(map(len, columns), initial=0)], [x.start for x in columns]
    edges = sorted({*starts, *(x.stop for x in columns)})
    groups, row = list[list[int]](), 0  # first row, end, visible columns of the first and last row
    for part in rows:
        cuts = edges[bisect_right(edges, part.start) : bisect_left(edges, part.stop)]
        for x, y in pairwise((part.start, *cuts, part.stop)):
            n = bisect_right(starts, x) - 1  # the last range of columns that starts at or before x
            visible = offsets[n] + min(x - starts[n], len(columns[n])) if n >= 0 else 0
            last = visible + (y - x) * (n >= 0 and x in columns[n])
            if groups and groups[-1][3] == visible and (last > visible or groups[-1][2] == visible):
                groups[-1][1], groups[-1][3] = row + y - x, last
            else:
                groups.append([row, row + y - x, visible, last])
            row += y - x
    calls = list[Call]()
    for first, end, full, last in groups:
        causal_rows = last - full  # rows that see one more column each
        if bottom_right and last <= offsets[1] and causal_rows == end - first:
            full = 0
        calls += [Call(range(first, end), range(full), False)] * (full > 0)
        calls += [Call(range(end - causal_rows, end), range(full, last), True)] * (causal_rows > 0)
    return calls


def to_ranges(blocks: Sequence[Ranges]) -> list[range]:
    """Returns the positions of all blocks, block by block and ascending, as maximal ranges."""
    parts = list[range]()
    for x in filter(len, chain.from_iterable(map(_ascending, blocks))):
        if parts and (previous := parts[-1]).step == x.step and previous[-1] + x.step == x.start:
            parts[-1] = range(previous.start, x.stop, x.step)
        else:
            parts.append(x)
    return parts


def _ascending(block: Ranges) -> Iterable[range]:
    """Returns a block's ranges in order; splits interleaved ranges into contiguous runs."""
    if len(block) == 1 and block[0].step > 0:
        return block
    parts = sorted(filter(len, (p if p.step > 0 else p[::-1] for p in block)), key=lambda p: p[0])
    if ascend(parts):
        return parts
    positions = sorted_positions(tuple(parts))
    ends = [0, *(np.flatnonzero(np.diff(positions) != 1) + 1).tolist(), len(positions)]
    return (range(int(positions[a]), int(positions[b - 1]) + 1) for a, b in pairwise(ends))


def _strips(q: Sequence[Ranges], kv: Sequence[Ranges], boxes: Ints) -> Iterator[Call]:
    """Cuts each block of queries with each block of keys."""
    row = 0
    for queries in map(sorted_positions, q):
        column = 0
        for keys in map(sorted_positions, kv):
            row_numbers, column_numbers = (
                range(row, row + len(queries)),
                range(column, column + len(keys)),
            )
            for rows, columns, band in strip_calls(queries, keys, boxes):
                row_part, column_part = (
                    slice(rows.start, rows.stop),
                    slice(columns.start, columns.stop),
                )
                yield Call(row_numbers[row_part], column_numbers[column_part], band)
            column += len(keys)
        row += len(queries)
