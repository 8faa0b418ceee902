"""Kinds of rectangles, from closed forms of the mask: full, causal, strict, or tiles.

A rectangle is a grid of tiles (q chunk x kv chunk), with its chunks in the order of the sequence.
It is causal if it has as many queries as keys, its diagonal tiles are causal, those below are full
and those above are empty. A tile of two sets, one a shift of the other, is causal if the mask
allows exactly its pairs with j - i <= the shift.
"""

from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from ringloom.planner.analysis.tiles import FULL as FULL_TILE
from ringloom.planner.analysis.tiles import LIVE, tiles
from ringloom.planner.ir import Attend, Plan
from ringloom.planner.masks.areas import areas
from ringloom.planner.masks.regions import FAR, Region
from ringloom.planner.partitions import Side, shift

Ints = NDArray[np.signedinteger[Any]]
Kind = Literal["full", "causal", "strict", "tiles"]
KINDS: tuple[Kind, ...] = get_args(Kind)
FULL, CAUSAL, STRICT, TILES = range(len(KINDS))
EMPTY = TILES + 1
Codes = NDArray[np.int8]
CELLS = 1 << 20  # tiles processed at a time
BANDS = 8  # most distinct shifts tried per call under a mask of several pieces


class Chunks:
    """The sets of positions of a side, as columns; ranges with equal gaps are mutual shifts."""

    def __init__(self, side: Side, offset: int) -> None:
        ranges = [tuple(p for p in shift(c, offset) if p) for c in side.chunks]
        self.ranges, self.of = ranges, np.append(side.chunk, -1)  # of each block
        self.size = np.array([sum(map(len, c)) for c in ranges], np.int64)
        self.first = np.array([min((p[0] for p in c), default=0) for c in ranges], np.int64)
        self.last = np.array([max((p[-1] for p in c), default=-1) for c in ranges], np.int64)
        self.gap = np.array([c[0].step if len(c) == 1 else FAR for c in ranges], np.int64)

    def ordered(self, chunks: Ints) -> Ints:
        """Returns each row's distinct non-empty chunks in order, padded with -1."""
        chunks = np.sort(np.where(self.size[chunks] > 0, chunks, -1), axis=1)
        chunks[:, 1:][chunks[:, 1:] == chunks[:, :-1]] = -1
        first = np.where(chunks >= 0, self.first[chunks], FAR)
        return np.take_along_axis(chunks, np.argsort(first, axis=1, kind="stable"), axis=1)

    def apart(self, chunks: Ints) -> NDArray[np.bool_]:
        """Returns True for rows in which each chunk ends before the next one begins."""
        left, right = chunks[:, :-1], chunks[:, 1:]
        overlap = (left >= 0) & (right >= 0) & (self.last[left] >= self.first[right])
        return np.asarray(~overlap.any(axis=1))


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
        partly = np.flatnonzero(~self.tiles.full(attend))
        height = max(1, CELLS // max(1, attend.q.shape[1] * attend.kv.shape[1]))
        for at in range(0, len(partly), height):
            rows = partly[at : at + height]
            kinds[rows] = self._grids(self.q.of[attend.q[rows]], self.kv.of[attend.kv[rows]])
        return kinds

    def _grids(self, rows: Ints, cols: Ints) -> Codes:
        """Returns the kinds of rectangles of chunks [n, a] x [n, b], -1 for none, not full."""
        rows, cols = self.q.ordered(rows), self.kv.ordered(cols)
        i, j = np.arange(rows.shape[1])[:, None], np.arange(cols.shape[1])
        here = (rows >= 0)[:, :, None] & (cols >= 0)[:, None, :]
        grid = np.full(here.shape, EMPTY, np.int8)
        at, r, c = np.nonzero(here)
        grid[here] = self._tiles(rows[at, r], cols[at, c])
        above = j - i  # the diagonal
        n, m = self.q.size[rows][:, :, None], self.kv.size[cols][:, None, :]
        aligned = (rows >= 0).sum(axis=1) == (cols >= 0).sum(axis=1)
        aligned &= self.q.apart(rows) & self.kv.apart(cols)
        aligned &= ~(here & (above < 0) & (grid != FULL)).any(axis=(1, 2))
        aligned &= ~(here & (above > 0) & (grid != EMPTY)).any(axis=(1, 2))
        diagonal = here & (above == 0)
        aligned &= ~(diagonal & (n != m)).any(axis=(1, 2))
        causal, strict = (~(diagonal & (grid != k)).any(axis=(1, 2)) for k in (CAUSAL, STRICT))
        kinds = np.where(aligned & causal, CAUSAL, np.where(aligned & strict, STRICT, TILES))
        single = here.sum(axis=(1, 2)) == 1
        return np.where(single, np.minimum(grid[:, 0, 0], TILES), kinds).astype(np.int8)

    def _tiles(self, r: Ints, c: Ints) -> Codes:
        """Returns the kinds of tiles, chunk r[i] x chunk c[i]; also EMPTY."""
        tile, n, m = self.tiles.chunk_kinds[r, c], self.q.size[r], self.kv.size[c]
        kinds = np.full(len(r), TILES, np.int8)
        gap = self.q.gap[r]
        like = (gap == self.kv.gap[c]) & (gap < FAR) & (n == m)
        shift = self.kv.first[c] - self.q.first[r]
        if (high := self._band()) is not None:
            far = high - shift
            kinds[like & (-gap <= far) & (far < 0)] = STRICT
            kinds[like & (far >= 0) & (far < gap)] = CAUSAL
        else:
            area = self.tiles.areas[r, c]
            like &= area == n * (n + 1) // 2
            for by in np.unique(shift[like])[:BANDS]:
                at = np.flatnonzero(like & (shift == by))
                kinds[at[self._under(int(by), r[at], c[at]) == area[at]]] = CAUSAL
        kinds[tile & LIVE == 0] = EMPTY
        kinds[tile & FULL_TILE > 0] = FULL
        return kinds

    def _band(self) -> int | None:
        """Returns the largest j - i if the mask has no other rule, like causal; else None."""
        if len(self.region) != 1 or not len(self.q.size) or not len(self.kv.size):
            return None
        i0, i1, j0, j1, low, high = self.region.pieces[0].tolist()
        top, bottom = int(self.q.first.min()), int(self.q.last.max())
        left, right = int(self.kv.first.min()), int(self.kv.last.max())
        wide = i0 <= top and i1 > bottom and j0 <= left and j1 > right
        return high if wide and low <= left - bottom else None

    def _under(self, shift: int, r: Ints, c: Ints) -> NDArray[np.int64]:
        """Counts the allowed pairs with j - i <= shift of each tile."""
        band = Region.of([[-FAR, FAR, -FAR, FAR, -FAR, shift]])
        rows, row = np.unique(r, return_inverse=True)
        cols, col = np.unique(c, return_inverse=True)
        table = areas(
            self.region.intersect(band),
            [self.q.ranges[i] for i in rows],
            [self.kv.ranges[j] for j in cols],
        )
        return np.asarray(table[row, col])
