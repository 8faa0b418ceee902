"""Kinds of rectangles, from closed forms of the mask: full, causal, strict, or tiles.

A rectangle is a grid of tiles (q chunk x kv chunk), with its chunks in the order of the sequence. A
rectangle is causal if it has the same number of queries and keys, and if tiles are causal on the
diagonal, full below and empty above. A tile of two chunks, of which one is a shift of the other, is
causal if the mask allows exactly the pairs with j - i <= the shift.
"""

from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from ringloom.planner.analysis.tiles import FULL as FULL_TILE
from ringloom.planner.analysis.tiles import LIVE, tiles
from ringloom.planner.ir import Attend, Plan
from ringloom.planner.masks.areas import count_pairs
from ringloom.planner.masks.regions import FAR, Region
from ringloom.planner.partitions import Side, shift_ranges

Ints = NDArray[np.signedinteger[Any]]
Kind = Literal["full", "causal", "strict", "tiles"]
KINDS: tuple[Kind, ...] = get_args(Kind)
FULL, CAUSAL, STRICT, TILES = range(len(KINDS))
EMPTY = TILES + 1
Codes = NDArray[np.int8]
BATCH = 1 << 20  # tiles processed at a time
MOST_SHIFTS = 8  # tried per call under a mask of several pieces


class Chunks:
    """The chunks of a side, as columns; ranges with equal gaps are shifts of each other."""

    def __init__(self, side: Side, offset: int) -> None:
        ranges = [tuple(p for p in shift_ranges(c, offset) if p) for c in side.chunks]
        self.ranges, self.of = ranges, np.append(side.chunk, -1)  # of each block
        self.size = np.array([sum(map(len, c)) for c in ranges], np.int64)
        self.first = np.array([min((p[0] for p in c), default=0) for c in ranges], np.int64)
        self.last = np.array([max((p[-1] for p in c), default=-1) for c in ranges], np.int64)
        self.gap = np.array([c[0].step if len(c) == 1 else FAR for c in ranges], np.int64)

    def sort_rows(self, chunks: Ints) -> Ints:
        """Returns the distinct non-empty chunks of each row in order, padded with -1."""
        chunks = np.sort(np.where(self.size[chunks] > 0, chunks, -1), axis=1)
        chunks[:, 1:][chunks[:, 1:] == chunks[:, :-1]] = -1
        first = np.where(chunks >= 0, self.first[chunks], FAR)
        return np.take_along_axis(chunks, np.argsort(first, axis=1, kind="stable"), axis=1)

    def are_separate(self, chunks: Ints) -> NDArray[np.bool_]:
        """Returns True for rows in which each chunk ends before the next chunk begins."""
        left, right = chunks[:, :-1], chunks[:, 1:]
        overlaps = (left >= 0) & (right >= 0) & (self.last[left] >= self.first[right])
        return np.asarray(~overlaps.any(axis=1))


class Kinds:
    """The kinds of a plan's rectangles."""

    def __init__(self, plan: Plan) -> None:
        work = plan.workload
        self.sides = plan.partition
        self.tiles = tiles(plan)
        self.region = work.mask.region()
        self.q = Chunks(self.sides.q, work.offset)
        self.kv = Chunks(self.sides.kv, 0)

    def of(self, attend: Attend) -> Codes:
        """Returns the kind of each rectangle, as an index into KINDS."""
        kinds = np.full(len(attend), FULL, np.int8)
        not_full = np.flatnonzero(~self.tiles.full(attend))
        height = max(1, BATCH // max(1, attend.q.shape[1] * attend.kv.shape[1]))
        for start in range(0, len(not_full), height):
            rows = not_full[start : start + height]
            kinds[rows] = self._kinds_of_grids(
                self.q.of[attend.q[rows]], self.kv.of[attend.kv[rows]]
            )
        return kinds

    def _kinds_of_grids(self, rows: Ints, cols: Ints) -> Codes:
        """Returns the kinds of rectangles of chunks [n, a] x [n, b] that are not full; -1: none."""
        rows, cols = self.q.sort_rows(rows), self.kv.sort_rows(cols)
        i, j = np.arange(rows.shape[1])[:, None], np.arange(cols.shape[1])
        is_tile = (rows >= 0)[:, :, None] & (cols >= 0)[:, None, :]
        grid = np.full(is_tile.shape, EMPTY, np.int8)
        row, r, c = np.nonzero(is_tile)
        grid[is_tile] = self._kinds_of_tiles(rows[row, r], cols[row, c])
        offset = j - i
        n, m = self.q.size[rows][:, :, None], self.kv.size[cols][:, None, :]
        is_aligned = (rows >= 0).sum(axis=1) == (cols >= 0).sum(axis=1)
        is_aligned &= self.q.are_separate(rows) & self.kv.are_separate(cols)
        is_aligned &= ~(is_tile & (offset < 0) & (grid != FULL)).any(axis=(1, 2))
        is_aligned &= ~(is_tile & (offset > 0) & (grid != EMPTY)).any(axis=(1, 2))
        diagonal = is_tile & (offset == 0)
        is_aligned &= ~(diagonal & (n != m)).any(axis=(1, 2))
        causal, strict = (~(diagonal & (grid != k)).any(axis=(1, 2)) for k in (CAUSAL, STRICT))
        kinds = np.where(is_aligned & causal, CAUSAL, np.where(is_aligned & strict, STRICT, TILES))
        is_single = is_tile.sum(axis=(1, 2)) == 1
        return np.where(is_single, np.minimum(grid[:, 0, 0], TILES), kinds).astype(np.int8)

    def _kinds_of_tiles(self, r: Ints, c: Ints) -> Codes:
        """Returns the kinds of tiles, chunk r[i] x chunk c[i], which may be EMPTY."""
        tile, n, m = self.tiles.chunk_kinds[r, c], self.q.size[r], self.kv.size[c]
        kinds = np.full(len(r), TILES, np.int8)
        gap = self.q.gap[r]
        is_shifted = (gap == self.kv.gap[c]) & (gap < FAR) & (n == m)
        shift = self.kv.first[c] - self.q.first[r]
        if (high := self._upper_bound()) is not None:
            excess = high - shift
            kinds[is_shifted & (-gap <= excess) & (excess < 0)] = STRICT
            kinds[is_shifted & (excess >= 0) & (excess < gap)] = CAUSAL
        else:
            area = self.tiles.areas[r, c]
            is_shifted &= area == n * (n + 1) // 2
            for distance in np.unique(shift[is_shifted])[:MOST_SHIFTS]:
                n = np.flatnonzero(is_shifted & (shift == distance))
                kinds[n[self._count_below(int(distance), r[n], c[n]) == area[n]]] = CAUSAL
        kinds[tile & LIVE == 0] = EMPTY
        kinds[tile & FULL_TILE > 0] = FULL
        return kinds

    def _upper_bound(self) -> int | None:
        """Returns the largest j - i of a mask that has no other rule, such as causal; or None."""
        if len(self.region) != 1 or not len(self.q.size) or not len(self.kv.size):
            return None
        i0, i1, j0, j1, low, high = self.region.pieces[0].tolist()
        top, bottom = int(self.q.first.min()), int(self.q.last.max())
        left, right = int(self.kv.first.min()), int(self.kv.last.max())
        covers_all = i0 <= top and i1 > bottom and j0 <= left and j1 > right
        return high if covers_all and low <= left - bottom else None

    def _count_below(self, shift: int, r: Ints, c: Ints) -> NDArray[np.int64]:
        """Counts the allowed pairs with j - i <= shift of each tile."""
        region = Region.of([[-FAR, FAR, -FAR, FAR, -FAR, shift]])
        rows, row = np.unique(r, return_inverse=True)
        cols, col = np.unique(c, return_inverse=True)
        table = count_pairs(
            self.region.intersect(region),
            [self.q.ranges[i] for i in rows],
            [self.kv.ranges[j] for j in cols],
        )
        return np.asarray(table[row, col])
