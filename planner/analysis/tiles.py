"""The mask seen by a partition: how many (query, key) pairs each tile holds, which are live.

A tile is the mask restricted to one q block and one kv block. Areas are counted between the
distinct sets of positions (chunks), head slices are compared apart, so that a head-parallel
partition of many blocks costs no more than its token layout.
"""

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from planner.ir import Attend, Plan
from planner.masks.areas import areas
from planner.partitions import Ints, Partition, shifted
from planner.workload import Workload

CELLS = 1 << 24  # tiles of a node looked at at a time


@dataclass(frozen=True, eq=False)
class Tiles:
    """Tile areas [q chunks, kv chunks] in pairs, and heads in common [q slices, kv slices]."""

    work: Workload
    partition: Partition
    areas: NDArray[np.int64]

    @cached_property  # benchmarks/bench_scale.py
    def live_chunks(self) -> NDArray[np.bool_]:
        """Chunk pairs with at least one allowed pair."""
        return self.areas > 0

    @property
    def shared_heads(self) -> NDArray[np.int64]:
        """Query heads that a q slice and a kv slice compute together under the GQA grouping."""
        group, q, kv = self.work.group, self.partition.q.slices, self.partition.kv.slices
        low = np.maximum.outer([s.start for s in q], [s.start * group for s in kv])
        high = np.minimum.outer([s.stop for s in q], [s.stop * group for s in kv])
        shared: NDArray[np.int64] = np.maximum(high - low, 0)
        return shared

    @property
    def one_slice(self) -> bool:
        """True if heads never tell tiles apart (every block has every head)."""
        return self.shared_heads.size == 1

    def live(self, q: Ints, kv: Ints) -> NDArray[np.bool_]:
        """Returns True for tiles (q, kv), broadcast together, with an allowed pair; not for -1."""
        present = (q >= 0) & (kv >= 0)
        q_side, kv_side = self.partition.q, self.partition.kv
        rows, columns = _alike(q_side.chunk[q], 0), _alike(kv_side.chunk[kv], 0)
        slices = _alike(q_side.slice[q], 1), _alike(kv_side.slice[kv], 2)
        shared = self.shared_heads[slices] > 0
        live: NDArray[np.bool_] = _looked_up(self.live_chunks, rows, columns) & shared & present
        return live

    def pairs(self, q: Ints, kv: Ints) -> NDArray[np.int64]:
        """Allowed (query, key) pairs of tiles x shared query heads (not x batch); -1 counts 0."""
        sides = self.partition
        area = self.areas[sides.q.chunk[q], sides.kv.chunk[kv]]
        heads = self.shared_heads[sides.q.slice[q], sides.kv.slice[kv]]
        pairs: NDArray[np.int64] = np.where((q >= 0) & (kv >= 0), area * heads, 0)
        return pairs

    def total_pairs(self) -> int:
        """Allowed (query, key, query head) triples of the whole workload, one batch row."""
        return int(self.areas.sum()) * self.work.heads


def _alike(table: Ints, axis: int) -> Ints:
    """A table of rectangles, cut to one entry along an axis along which nothing changes.

    Ranks that attend the same positions with different heads are looked at together: ulysses on
    256 ranks takes 1.6 times as long to plan without.
    """
    if table.ndim != 3 or table.shape[axis] < 2:
        return table
    first = table.take([0], axis=axis)
    return first if (table == first).all() else table


def _looked_up(table: NDArray[np.bool_], rows: Ints, columns: Ints) -> NDArray[np.bool_]:
    """table[rows, columns], broadcast together; rectangles like the one before only once."""
    if rows.ndim != 3 or not len(rows) == len(columns) > 1:
        every: NDArray[np.bool_] = table[rows, columns]
        return every
    fresh = np.arange(len(rows)) == 0
    for chunks in (rows, columns):
        fresh[1:] |= (chunks[1:] != chunks[:-1]).any(axis=(1, 2))
    entries: NDArray[np.bool_] = table[rows[fresh], columns[fresh]][np.cumsum(fresh) - 1]
    return entries


def dead_edges(table: Tiles, attend: Attend) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Blocks of each rectangle without any live tile in it: bool [n, a] of q, [n, b] of kv."""
    q, kv = attend.q >= 0, attend.kv >= 0  # present, then: present and dead
    height = max(1, CELLS // max(1, q.shape[1] * kv.shape[1]))
    for at in range(0, len(attend), height):
        rows = slice(at, at + height)
        live = table.live(attend.q[rows, :, None], attend.kv[rows, None, :])
        q[rows] &= ~live.any(axis=2)
        kv[rows] &= ~live.any(axis=1)
    return q, kv


@lru_cache(maxsize=8)  # every analysis asks again: benchmarks/bench_scale.py
def tiles_of(work: Workload, partition: Partition) -> Tiles:
    """The tiles of a partition, counted once."""
    queries = [shifted(chunk, work.offset) for chunk in partition.q.chunks]
    return Tiles(work, partition, areas(work.mask.region(), queries, partition.kv.chunks))


def tiles(plan: Plan) -> Tiles:
    """The tiles that a plan has to cover."""
    return tiles_of(plan.workload, plan.partition)
