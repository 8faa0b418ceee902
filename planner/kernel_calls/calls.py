"""rectangle_calls(q, kv, boxes)   cuts a rectangle of query and key blocks into kernel calls.

    full     every row sees every column
    causal   as many rows as columns, row r sees the columns 0..r (is_causal in kernels); more
             columns if the kernel aligns the mask with the last row, which sees all columns
    window   row r sees the columns r + lo..r + hi
    masked   at most 512 rows under an explicit mask

Every row of a full, causal or window call sees something. Under a causal mask, equal blocks on both
sides form one triangle, whatever their number. Rectangles of few ranges are cut in closed form
(`runs`); if many ranges interleave, they are cut into strips of rows (`strips`).
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain, pairwise

import numpy as np

from ringloom.planner.kernel_calls.runs import PLAIN, Call, Takes, ascend, band_calls, runs
from ringloom.planner.kernel_calls.strips import strip_calls
from ringloom.planner.masks.regions import FAR, Ints
from ringloom.planner.partitions import Ranges, merge

CAUSAL = np.array([[-FAR, FAR, -FAR, FAR, -FAR, 0]])
MOST = 64  # with more pairs of runs, positions count as interleaved


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
    each block. `masks`: kernels accept masks, so masked calls are possible; `takes`: other calls
    that they accept.
    """
    rows, columns = in_turn(q), in_turn(kv)
    few = len(rows) * len(columns) <= MOST or not masks
    calls = _causal(rows, columns, takes.bottom_right) if np.array_equal(boxes, CAUSAL) else []
    if calls and (few or len(calls) ** 2 <= MOST):
        return calls
    if few:
        return band_calls(runs(rows), runs(columns), boxes, takes)
    q, kv = ([(*x,)] if ascend(x) else side for x, side in ((rows, q), (columns, kv)))
    return list(_strips(q, kv, boxes))


def _causal(
    rows: Sequence[range], columns: Sequence[range], bottom_right: bool = False
) -> list[Call]:
    """Cuts ascending ranges, multiples of a step apart, under a causal mask; [] for other ranges.

    Rows that see as many columns as the row before, followed by rows that see one more each, make a
    full call for the common columns, and a causal call; or a single call, if causal calls are
    aligned with the last row and the columns start at the first. Loop programs do the same.
    """
    step = max((x.step for x in (*rows, *columns) if len(x) > 1), default=1)
    apart = {n % step for x in (*rows, *columns) for n in x[:2]}
    if len(apart) != 1 or not (ascend(rows) and ascend(columns)):
        return []
    rows, columns = ([range(x[0] // step, x[-1] // step + 1) for x in y] for y in (rows, columns))
    before, starts = [*accumulate(map(len, columns), initial=0)], [x.start for x in columns]
    edges = sorted({*starts, *(x.stop for x in columns)})
    groups, row = list[list[int]](), 0  # first row, end, columns seen by the first and the last
    for part in rows:
        inside = edges[bisect_right(edges, part.start) : bisect_left(edges, part.stop)]
        for x, y in pairwise((part.start, *inside, part.stop)):
            n = bisect_right(starts, x) - 1  # the last range of columns that starts before x
            seen = before[n] + min(x - starts[n], len(columns[n])) if n >= 0 else 0
            last = seen + (y - x) * (n >= 0 and x in columns[n])
            if groups and groups[-1][3] == seen and (last > seen or groups[-1][2] == seen):
                groups[-1][1], groups[-1][3] = row + y - x, last
            else:
                groups.append([row, row + y - x, seen, last])
            row += y - x
    calls = list[Call]()
    for first, end, full, last in groups:
        many = last - full  # rows that see one more column each
        if bottom_right and last <= before[1] and many == end - first:
            full = 0
        calls += [Call(range(first, end), range(full), False)] * (full > 0)
        calls += [Call(range(end - many, end), range(full, last), True)] * (many > 0)
    return calls


def in_turn(blocks: Sequence[Ranges]) -> list[range]:
    """Lists the positions of blocks in turn, ascending in each block, as maximal ranges."""
    parts = list[range]()
    for x in filter(len, chain.from_iterable(map(_ascending, blocks))):
        if parts and (before := parts[-1]).step == x.step and before[-1] + x.step == x.start:
            parts[-1] = range(before.start, x.stop, x.step)
        else:
            parts.append(x)
    return parts


def _ascending(block: Ranges) -> Iterable[range]:
    """Lists a block's ranges in order; interleaved ranges are split into contiguous runs."""
    if len(block) == 1 and block[0].step > 0:
        return block
    parts = sorted(filter(len, (p if p.step > 0 else p[::-1] for p in block)), key=lambda p: p[0])
    if ascend(parts):
        return parts
    whole = merge(tuple(parts))
    ends = [0, *(np.flatnonzero(np.diff(whole) != 1) + 1).tolist(), len(whole)]
    return (range(int(whole[a]), int(whole[b - 1]) + 1) for a, b in pairwise(ends))


def _strips(q: Sequence[Ranges], kv: Sequence[Ranges], boxes: Ints) -> Iterator[Call]:
    """Cuts each block of queries with each block of keys."""
    row = 0
    for queries in map(merge, q):
        column = 0
        for keys in map(merge, kv):
            at, to = range(row, row + len(queries)), range(column, column + len(keys))
            for rows, columns, band in strip_calls(queries, keys, boxes):
                row_part, column_part = (
                    slice(rows.start, rows.stop),
                    slice(columns.start, columns.stop),
                )
                yield Call(at[row_part], to[column_part], band)
            column += len(keys)
        row += len(queries)
