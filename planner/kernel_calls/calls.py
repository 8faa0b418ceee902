"""rectangle_calls(q, kv, boxes)   cuts a rectangle of query and key blocks into kernel calls.

    full     every row sees every column
    causal   as many rows as columns, row r sees the columns 0..r: what kernels call is_causal
    window   row r sees the columns r + lo..r + hi
    masked   rows under an explicit mask, at most 512 of them

No row of a full, causal or window call sees nothing. Under a causal mask the same blocks on
both sides are one triangle, however many they are. A rectangle of few ranges is cut in closed form
(`runs`); one whose positions interleave in many is cut into strips of rows (`strips`).
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, pairwise

import numpy as np

from planner.kernel_calls.runs import Call, ascend, band_calls, runs
from planner.kernel_calls.strips import strip_calls
from planner.masks.regions import FAR, Ints
from planner.partitions import Ranges, merge

CAUSAL = [[-FAR, FAR, -FAR, FAR, -FAR, 0]]
MOST = 64  # pairs of runs beyond which positions are taken as interleaved


def rectangle_calls(
    q: Sequence[Ranges], kv: Sequence[Ranges], boxes: Ints, masks: bool = True
) -> list[Call]:
    """Returns the calls of a rectangle of blocks under a mask.

    q, kv: positions of each block, queries aligned with the keys. boxes: [n, 6], the mask as
    disjoint boxes cut by bands. Rows and columns count the positions of the blocks in turn, each
    block's ascending. `masks`: kernels take masks, so that there may be masked calls.
    """
    rows, columns = in_turn(q), in_turn(kv)
    if boxes.tolist() == CAUSAL:
        rows, columns = _closed_up(rows, columns)
    if len(rows) * len(columns) <= MOST or not masks:
        return band_calls(runs(rows), runs(columns), boxes.tolist())
    q, kv = ([(*x,)] if ascend(x) else side for x, side in ((rows, q), (columns, kv)))
    return list(_strips(q, kv, boxes))


def _closed_up(*sides: list[range]) -> Sequence[list[range]]:
    """Closes gaps without positions of either side, where that leaves one range of each.

    By whole steps, so the order of positions, which is all that a causal mask reads, stays.
    """
    parts = sorted({*sides[0], *sides[1]}, key=lambda part: part.start)
    steps = {part.step for part in parts if len(part) > 1} or {1}
    if len(steps) > 1 or not all(map(ascend, sides)):
        return sides
    (step,), free, shift, closed = steps, 0, 0, dict[range, Ranges]()
    for part in parts:
        shift += max(0, (part.start - shift - free) // step * step)
        end = part[-1] + 1 - shift  # the step of a range of one position may lead beyond it
        closed[part], free = (range(part.start - shift, end, step),), max(free, end)
    joined = [in_turn([closed[part] for part in side]) for side in sides]
    return joined if all(len(side) == 1 for side in joined) else sides


def in_turn(blocks: Sequence[Ranges]) -> list[range]:
    """Lists the positions of blocks in turn, each block's ascending.

    In ranges of which none goes on where the last one ended.
    """
    parts = list[range]()
    for x in filter(len, chain.from_iterable(map(_ascending, blocks))):
        if parts and (before := parts[-1]).step == x.step and before[-1] + x.step == x.start:
            parts[-1] = range(before.start, x.stop, x.step)
        else:
            parts.append(x)
    return parts


def _ascending(block: Ranges) -> Iterable[range]:
    """Lists a block's ranges one after the other; what interleaves falls into single stripes."""
    if len(block) == 1 and block[0].step > 0:
        return block
    parts = sorted(filter(len, (p if p.step > 0 else p[::-1] for p in block)), key=lambda p: p[0])
    if ascend(parts):
        return parts
    whole = merge(tuple(parts))
    ends = [0, *(np.flatnonzero(np.diff(whole) != 1) + 1).tolist(), len(whole)]
    return (range(int(whole[a]), int(whole[b - 1]) + 1) for a, b in pairwise(ends))


def _strips(q: Sequence[Ranges], kv: Sequence[Ranges], boxes: Ints) -> Iterator[Call]:
    """Cuts each block of queries by each of keys."""
    row = 0
    for queries in map(merge, q):
        column = 0
        for keys in map(merge, kv):
            at, to = range(row, row + len(queries)), range(column, column + len(keys))
            for rows, columns, band in strip_calls(queries, keys, boxes):
                part, beside = slice(rows.start, rows.stop), slice(columns.start, columns.stop)
                yield Call(at[part], to[beside], band)
            column += len(keys)
        row += len(queries)
