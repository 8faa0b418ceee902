"""rectangle_calls(q, kv, boxes)   cuts a rectangle of query and key blocks into kernel calls.

    full     every row sees every column
    causal   as many rows as columns, row r sees the columns 0..r: what kernels call is_causal
    window   row r sees the columns r + lo..r + hi
    masked   rows under an explicit mask, at most 512 of them

No row of a full, causal or window call sees nothing. A rectangle whose diagonal is one straight
line, however many blocks it goes through, is a triangle; one of few ranges is cut in closed form
(`runs`); one whose positions interleave in many is cut into strips of rows (`strips`).
"""

from collections.abc import Iterator, Sequence
from itertools import chain, pairwise
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from planner.kernel_calls.ramps import ramp
from planner.kernel_calls.runs import Band, band_calls, joined, runs, triangle
from planner.kernel_calls.strips import strip_calls
from planner.masks.regions import FAR
from planner.partitions import Ranges, merge

Ints = NDArray[np.int64]
Kind = Literal["full", "causal", "window", "masked"]
CAUSAL = [[-FAR, FAR, -FAR, FAR, -FAR, 0]]
MOST = 64  # pairs of runs beyond which positions are taken as interleaved


class Call(NamedTuple):
    """One kernel call: its rows and columns in its rectangle; band None: masked by positions."""

    rows: range
    columns: range
    band: Band | None

    @property
    def kind(self) -> Kind:
        """The mask of the call."""
        if self.band is None:
            return "masked"
        return ("full", "causal")[self.band] if isinstance(self.band, bool) else "window"


def rectangle_calls(q: Sequence[Ranges], kv: Sequence[Ranges], boxes: Ints) -> list[Call]:
    """Returns the calls of a rectangle of blocks under a mask.

    q, kv: positions of each block, queries aligned with the keys. boxes: [n, 6], the mask as
    disjoint boxes cut by bands. Rows and columns count the positions of the blocks in turn, each
    block's ascending.
    """
    rows, columns = in_turn(q), in_turn(kv)
    if boxes.tolist() == CAUSAL and (calls := straight(rows, columns)) is not None:
        return calls
    over, across = runs(rows), runs(columns)
    if len(over) * len(across) <= MOST:
        return [Call(*call) for call in band_calls(over, across, boxes.tolist())]
    return list(_strips(q, kv, boxes))


def in_turn(blocks: Sequence[Ranges]) -> list[range]:
    """Lists the positions of blocks in turn, each block's ascending, in joined ranges."""
    plain = (
        block if len(block) == 1 and block[0].step > 0 else _ascending(block) for block in blocks
    )
    return joined(chain.from_iterable(plain))


def _ascending(block: Ranges) -> Iterator[range]:
    """Lists a block's ranges one after the other; what interleaves falls into single stripes."""
    parts = sorted(filter(len, (p if p.step > 0 else p[::-1] for p in block)), key=lambda p: p[0])
    if all(a[-1] < b[0] for a, b in pairwise(parts)):
        yield from parts
        return
    whole = merge(tuple(parts))
    ends = [0, *(np.flatnonzero(np.diff(whole) != 1) + 1).tolist(), len(whole)]
    yield from (range(int(whole[a]), int(whole[b - 1]) + 1) for a, b in pairwise(ends))


def straight(rows: Sequence[range], columns: Sequence[range]) -> list[Call] | None:
    """Returns the calls of a causal rectangle, None where its diagonal is not one straight line."""
    steps = {x.step for x in (*rows, *columns) if len(x) > 1}
    falls = any(a[-1] > b[0] for side in (rows, columns) for a, b in pairwise(side))
    if len(steps) > 1 or falls:
        return None
    line = ramp(rows, columns)
    if line is None:
        return None
    (top, low, high), height = line, sum(map(len, rows))
    if top >= height:
        return []
    if low == high:
        return [Call(range(top, height), range(high), False)]
    return [Call(*call) for call in triangle(range(top, height), range(high), low - 1)]


def _strips(q: Sequence[Ranges], kv: Sequence[Ranges], boxes: Ints) -> Iterator[Call]:
    """Cuts each block of queries by each of keys, all together where these ascend."""
    whole = [[(*chain.from_iterable(side),)] if _ascends(side) else side for side in (q, kv)]
    row = 0
    for queries in (merge(block) for block in whole[0]):
        column = 0
        for keys in (merge(block) for block in whole[1]):
            for strip in strip_calls(queries, keys, boxes):
                at = range(strip.rows.start + row, strip.rows.stop + row)
                columns = range(strip.columns.start + column, strip.columns.stop + column)
                yield Call(at, columns, None if strip.masked else False)
            column += len(keys)
        row += len(queries)


def _ascends(blocks: Sequence[Ranges]) -> bool:
    """True if the blocks do not interleave and come in the order of their positions."""
    sides = [merge(block) for block in blocks if any(map(len, block))]
    return all(a[-1] < b[0] for a, b in pairwise(sides))
