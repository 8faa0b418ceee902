"""The mask seen by a partition: how many (query, key) pairs each tile holds, which are live.

A tile is the mask restricted to one q block and one kv block. Areas are counted between the
distinct sets of positions (chunks), head slices are compared apart, so that a head-parallel
partition of many blocks costs no more than its token layout.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.columns import NARROW, rowwise
from planner.ir import Attend, Index, Plan
from planner.masks.areas import areas, sizes
from planner.partitions import Ints, Partition, shifted
from planner.workload import Workload

LIVE, FULL = np.uint8(1), np.uint8(2)
CELLS = 1 << 22  # tiles of a node looked at at a time


@dataclass(frozen=True, eq=False)
class Tiles:
    """Tile areas [q chunks, kv chunks] in pairs, and heads in common [q slices, kv slices]."""

    work: Workload
    partition: Partition

    @cached_property  # several analyses ask for it, and for the kinds
    def areas(self) -> NDArray[np.int64]:
        """Allowed pairs of each pair of chunks."""
        return self._areas(slice(None))

    def _areas(self, rows: slice) -> NDArray[np.int64]:
        queries = [shifted(chunk, self.work.offset) for chunk in self.partition.q.chunks[rows]]
        return areas(self.work.mask.region(), queries, self.partition.kv.chunks)

    @cached_property  # every step looks its tiles up: benchmarks/bench_scale.py
    def _kinds(self) -> NDArray[np.uint8]:
        """LIVE and FULL of each pair of chunks, with a row and a column for block -1.

        A byte each, made from the areas of some rows at a time.
        """
        q, kv = (sizes(side.chunks) for side in (self.partition.q, self.partition.kv))
        kinds = np.full((len(q) + 1, len(kv) + 1), FULL, np.uint8)
        height = max(1, CELLS // len(kv))
        for at in range(0, len(q), height):
            rows = slice(at, at + height)
            counted = self._areas(rows)
            full = counted == np.multiply.outer(q[rows], kv)
            kinds[:-1][rows, :-1] = np.where(full, FULL, 0) | (counted > 0)
        return kinds

    @property
    def live_chunks(self) -> NDArray[np.bool_]:
        """Chunk pairs with at least one allowed pair."""
        return np.asarray(self._kinds[:-1, :-1] & LIVE, np.bool_)

    @cached_property
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
        rows, columns = (_alike(of[b], 0) for of, b in zip(self._entries, (q, kv), strict=True))
        live = np.asarray(_looked_up(self._kinds, rows, columns) & LIVE, np.bool_)
        if not self.one_slice:
            q_side, kv_side = self.partition.q, self.partition.kv
            slices = _alike(q_side.slice[q], 1), _alike(kv_side.slice[kv], 2)
            live = live & (self.shared_heads[slices] > 0)
        return live

    def full(self, q: Ints, kv: Ints) -> NDArray[np.bool_]:
        """Returns True for tiles (q, kv), broadcast together, without a hidden pair, and for -1."""
        rows, columns = (of[b] for of, b in zip(self._entries, (q, kv), strict=True))
        return np.asarray(_looked_up(self._kinds, rows, columns) & FULL, np.bool_)

    @cached_property
    def _entries(self) -> tuple[Index, Index]:
        """Per side: what each block, and block -1, adds to the entry of a tile in `_kinds`."""
        (height, width), (q, kv) = self._kinds.shape, (self.partition.q, self.partition.kv)
        entries = np.append(q.chunk, height - 1) * np.intp(width)
        return entries, np.append(kv.chunk, width - 1).astype(np.intp)

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


def _alike(table: NDArray[Any], axis: int) -> NDArray[Any]:
    """A table of rectangles, cut to one entry along an axis along which nothing changes.

    Ranks that attend the same positions with different heads are looked at together: ulysses on
    256 ranks takes 1.6 times as long to plan without.
    """
    if table.ndim != 3 or table.shape[axis] < 2 or table.size == len(table):
        return table
    first = table.take([0], axis=axis)
    return first if (table == first).all() else table


def _looked_up(table: NDArray[np.uint8], rows: Index, columns: Index) -> NDArray[np.uint8]:
    """The entries rows + columns, broadcast together; rectangles like the one before only once."""
    fresh = np.ones(len(rows) if rows.ndim == 3 else 0, np.bool_)
    if rows.ndim == 3 and rows.size > len(rows) and len(rows) == len(columns):
        fresh[1:] = (rows[1:] != rows[:-1]).any(axis=(1, 2))
        fresh[1:] |= (columns[1:] != columns[:-1]).any(axis=(1, 2))
    if fresh.all():
        return np.take(table, rows + columns)
    distinct: NDArray[np.uint8] = np.take(table, rows[fresh] + columns[fresh])
    return np.take(distinct, np.cumsum(fresh) - 1, axis=0)


def parts(rows: int, q: int, kv: int) -> Iterator[tuple[slice, slice, slice]]:
    """Cut the tiles of some rectangles: all rows of one tile, or of wide ones some rows of all."""
    if q * kv <= NARROW:
        for a, b in np.ndindex(q, kv):
            yield slice(None), slice(a, a + 1), slice(b, b + 1)
        return
    height = max(1, CELLS // (q * kv))
    for at in range(0, rows, height):
        yield slice(at, at + height), slice(None), slice(None)


def dead_edges(table: Tiles, attend: Attend) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Blocks of each rectangle without any live tile in it: bool [n, a] of q, [n, b] of kv."""
    q, kv = np.zeros(attend.q.shape, np.bool_), np.zeros(attend.kv.shape, np.bool_)
    for rows, a, b in parts(len(attend), attend.q.shape[1], attend.kv.shape[1]):
        live = table.live(attend.q[rows, a, None], attend.kv[rows, None, b])
        q[rows, a] |= rowwise(np.logical_or, live, axis=2)
        kv[rows, b] |= rowwise(np.logical_or, live, axis=1)
    return ~q & (attend.q >= 0), ~kv & (attend.kv >= 0)


@lru_cache(maxsize=8)  # every analysis asks again: benchmarks/bench_scale.py
def tiles_of(work: Workload, partition: Partition) -> Tiles:
    """The tiles of a partition, counted once."""
    return Tiles(work, partition)


def tiles(plan: Plan) -> Tiles:
    """The tiles that a plan has to cover."""
    return tiles_of(plan.workload, plan.partition)
