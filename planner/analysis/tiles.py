"""The tiles of a mask under a partition: the (query, key) pairs of tiles, and the live tiles.

A tile is the mask restricted to one q block and one kv block. Areas are counted between distinct
sets of positions (chunks), and head slices are compared separately, so a partition with many blocks
of few heads costs no more than its token layout.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from ringloom.planner.ir import Attend, Index, Plan
from ringloom.planner.masks.areas import count_pairs, count_positions
from ringloom.planner.partitions import Ints, Partition, heads_in_common, shift_ranges
from ringloom.planner.workload import Workload

LIVE, FULL = np.uint8(1), np.uint8(2)
CELLS = 1 << 21  # tiles of a node processed at a time


@dataclass(frozen=True, eq=False)
class Tiles:
    """Tile areas [q chunks, kv chunks] in pairs, and heads in common [q slices, kv slices]."""

    work: Workload
    partition: Partition

    @cached_property  # used by several analyses, as are the kinds
    def areas(self) -> NDArray[np.int64]:
        """Allowed pairs of each pair of chunks."""
        return self._areas(slice(None))

    def _areas(self, rows: slice) -> NDArray[np.int64]:
        queries = [shift_ranges(chunk, self.work.offset) for chunk in self.partition.q.chunks[rows]]
        return count_pairs(self.work.mask.region(), queries, self.partition.kv.chunks)

    @cached_property  # used in every step: benchmarks/bench_scale.py
    def chunk_kinds(self) -> NDArray[np.uint8]:
        """LIVE and FULL bits of each pair of chunks, with a row and a column for block -1."""
        q, kv = (count_positions(side.chunks) for side in (self.partition.q, self.partition.kv))
        kinds = np.full((len(q) + 1, len(kv) + 1), FULL, np.uint8)
        height = max(1, CELLS // len(kv))
        for at in range(0, len(q), height):
            rows = slice(at, at + height)
            areas = self._areas(rows)
            is_full = areas == np.multiply.outer(q[rows], kv)
            kinds[:-1][rows, :-1] = np.where(is_full, FULL, 0) | (areas > 0)
        return kinds

    @property
    def shared_heads(self) -> NDArray[np.int64]:
        """Number of query heads of each q slice whose KV head is in each kv slice."""
        return heads_in_common(self.partition.q.slices, self.partition.kv.slices, self.work.group)

    @property
    def one_slice(self) -> bool:
        """True if every block has all heads."""
        return len(self.partition.q.slices) == len(self.partition.kv.slices) == 1

    def live(self, q: Ints, kv: Ints) -> NDArray[np.bool_]:
        """Returns True for tiles (q, kv), broadcast together, with an allowed pair; -1 has none."""
        rows, columns = (of[b] for of, b in zip(self._entries, (q, kv), strict=True))
        live = np.asarray(self.chunk_kinds.take(rows + columns) & LIVE, np.bool_)
        if not self.one_slice:
            q_side, kv_side = self.partition.q, self.partition.kv
            live = live & (self.shared_heads[q_side.slice[q], kv_side.slice[kv]] > 0)
        return live

    def kinds(self, attend: Attend) -> Iterator[tuple[slice, NDArray[np.uint8]]]:
        """Yields LIVE and FULL bits of tiles [a, b, rows], a few rows at a time; FULL for -1."""
        height = max(1, CELLS // (attend.q.shape[1] * attend.kv.shape[1]))
        for at in range(0, len(attend), height):
            rows, (of_q, of_kv) = slice(at, at + height), self._entries
            q, kv = of_q.take(attend.q[rows].T), of_kv.take(attend.kv[rows].T)
            yield rows, self.chunk_kinds.take(q[:, None] + kv[None])

    def full(self, attend: Attend) -> NDArray[np.bool_]:
        """Returns True for rectangles whose pairs are all allowed: bool [rows]."""
        is_full = np.empty(len(attend), np.bool_)
        for rows, kinds in self.kinds(attend):
            is_full[rows] = np.logical_and.reduce(kinds & FULL, axis=(0, 1))
        return is_full

    def heads(self, attend: Attend) -> NDArray[np.int64]:
        """Counts the query heads of each rectangle, which must have one head slice per side."""
        if self.one_slice:
            return np.broadcast_to(self.shared_heads[0], len(attend))
        q, kv = (
            np.append(side.slice, -1)[blocks].max(axis=1)
            for side, blocks in (
                (self.partition.q, attend.q),
                (self.partition.kv, attend.kv),
            )
        )
        heads: NDArray[np.int64] = self.shared_heads[q, kv]
        return heads

    @cached_property  # as `chunk_kinds`
    def _entries(self) -> tuple[Index, Index]:
        """The terms of each q block and kv block in the index of a tile in flat `chunk_kinds`."""
        (height, width), (q, kv) = self.chunk_kinds.shape, (self.partition.q, self.partition.kv)
        entries = np.append(q.chunk, height - 1) * np.intp(width)
        return entries, np.append(kv.chunk, width - 1).astype(np.intp)

    def pairs(self, q: Ints, kv: Ints) -> NDArray[np.int64]:
        """Counts the allowed (query, key, query head) triples of tiles, batch 1; 0 for -1."""
        sides = self.partition
        area = self.areas[sides.q.chunk[q], sides.kv.chunk[kv]]
        heads = self.shared_heads[sides.q.slice[q], sides.kv.slice[kv]]
        pairs: NDArray[np.int64] = np.where((q >= 0) & (kv >= 0), area * heads, 0)
        return pairs

    def total_pairs(self) -> int:
        """Counts the allowed (query, key, query head) triples of the workload, for batch 1."""
        return int(self.areas.sum()) * self.work.heads


def dead_edges(table: Tiles, attend: Attend) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Marks blocks without a live tile in their rectangle: bool [n, a] for q, [n, b] for kv.

    Each side of a rectangle must have one head slice.
    """
    dead_q, dead_kv = attend.q >= 0, attend.kv >= 0
    has_heads = table.heads(attend) > 0
    for rows, kinds in table.kinds(attend):
        live = (kinds & LIVE).view(np.bool_)
        for dead, axis in ((dead_q, 1), (dead_kv, 0)):
            is_live: NDArray[np.bool_] = np.logical_or.reduce(live, axis=axis)
            dead[rows] &= ~(is_live & has_heads[rows]).T
    return dead_q, dead_kv


def without_dead_blocks(table: Tiles, attend: Attend) -> Attend:
    """Drops blocks without a live tile from rectangles."""
    dead_q, dead_kv = dead_edges(table, attend)
    if not (dead_q.any() or dead_kv.any()):
        return attend
    q, kv = np.where(dead_q, -1, attend.q), np.where(dead_kv, -1, attend.kv)
    return Attend(attend.rank, q, kv)


@lru_cache(maxsize=8)  # used by every analysis: benchmarks/bench_scale.py
def tiles_of(work: Workload, partition: Partition) -> Tiles:
    """Returns the tiles of a partition."""
    return Tiles(work, partition)


def tiles(plan: Plan) -> Tiles:
    """Returns the tiles of a plan's mask and partition."""
    return tiles_of(plan.workload, plan.partition)
