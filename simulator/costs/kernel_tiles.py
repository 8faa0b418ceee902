"""Counts of the kernel tiles that a kernel has to compute of each (q block, kv block) tile.

A kernel cuts a block's tokens, in ascending order, into runs of `tq` queries and `tk` keys, and
skips a kernel tile only when the mask allows no pair in it (Striped Attention, section 4.1).

    full tile      ceil(q / tq) * ceil(k / tk)
    empty tile     0
    partial tile   per run of queries and piece of the mask, the keys that the run reaches are one
                   interval [first query + lo, last query + hi + 1); the kernel tiles with a key in
                   it are consecutive, and the union over the pieces is counted

Under a mask that only looks at the distance j - i, tiles of equal shape and distance are counted
once, so stripes on thousands of ranks cost what a few thousand tiles cost.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from planner.analysis.tiles import LIVE, tiles_of
from planner.columns import ragged
from planner.masks.areas import sizes
from planner.masks.regions import Ints, overlaps
from planner.partitions import Partition
from planner.workload import Workload
from simulator.costs.position_sets import Sets, runs_of
from simulator.costs.shapes import Shapes


def kernel_tiles(work: Workload, partition: Partition, tile: tuple[int, int]) -> NDArray[np.int64]:
    """Count kernel tiles of `tile` (queries, keys) per pair of chunks: int64 [q, kv chunks]."""
    q_sizes, kv_sizes = sizes(partition.q.chunks), sizes(partition.kv.chunks)
    kind = tiles_of(work, partition).chunk_kinds[:-1, :-1]
    counts = np.multiply.outer(-(-q_sizes // tile[0]), -(-kv_sizes // tile[1]))
    counts[kind & LIVE == 0] = 0
    q, kv = np.nonzero(kind == LIVE)  # and not FULL
    if not len(q):
        return counts
    keys = Shapes.of(work, partition).keys(q, kv)
    _, at, which = np.unique(keys, return_index=True, return_inverse=True)
    counts[q, kv] = _tiles_of_pairs(q[at], kv[at], Cut.of(work, partition, tile))[which]
    return counts


class Reach(NamedTuple):
    """Keys [low, high) that run number `run` of q chunk `chunk` reaches through one piece."""

    chunk: Ints
    run: Ints
    low: Ints
    high: Ints

    def take(self, at: NDArray[np.intp]) -> "Reach":
        return Reach(*(field[at] for field in self))


@dataclass(frozen=True)
class Cut:
    """The query side cut into runs of kernel tiles, both sides as sets, and the mask's pieces."""

    pieces: Ints
    q: Sets
    kv: Sets
    chunk: Ints
    first: Ints
    last: Ints
    gap: Ints
    tile_kv: int

    @staticmethod
    def of(work: Workload, partition: Partition, tile: tuple[int, int]) -> "Cut":
        """Cut for the kernel tiles of a workload; queries at their aligned positions."""
        runs = [runs_of(ranges, tile[0]) for ranges in partition.q.chunks]
        first, last = (np.concatenate([run[i] for run in runs]) + work.offset for i in (0, 1))
        return Cut(
            pieces=work.mask.region().pieces,
            q=Sets.of(partition.q.chunks, work.offset),
            kv=Sets.of(partition.kv.chunks, 0),
            chunk=np.repeat(np.arange(len(runs)), [len(run[0]) for run in runs]),
            first=first,
            last=last,
            gap=np.array([run[2] for run in runs], np.int64),
            tile_kv=tile[1],
        )

    def reaches(self, wanted: NDArray[np.bool_]) -> Iterator[Reach]:
        """Yield the keys that runs of the wanted chunks reach, whole runs at a time, by chunk."""
        runs = np.flatnonzero(wanted[self.chunk])
        i0, i1 = self.pieces[:, 0], self.pieces[:, 1]
        for run, piece in overlaps(self.first[runs], self.last[runs] + 1, i0, i1):
            yield self._reach(runs[run], self.pieces[piece])

    def _reach(self, run: Ints, pieces: Ints) -> Reach:
        i0, i1, j0, j1, lo, hi = pieces.T
        chunk = self.chunk[run]
        low = self.q.next(chunk, np.maximum(self.first[run], i0))
        high = self.q.previous(chunk, np.minimum(self.last[run], i1 - 1))
        # A band narrower than the gaps between queries has gaps too: then query by query.
        narrow = (hi - lo + 1 < self.gap[chunk]) & (low < high)
        entry, low, high = self._apart(chunk, low, high, narrow)
        begin = np.maximum(j0[entry], low + lo[entry])
        end = np.minimum(j1[entry], high + hi[entry] + 1)
        kept = np.flatnonzero((low <= high) & (begin < end))
        return Reach(chunk[entry], run[entry], begin, end).take(kept)

    def _apart(
        self, chunk: Ints, low: Ints, high: Ints, narrow: NDArray[np.bool_]
    ) -> tuple[Ints, Ints, Ints]:
        """Return (entry, low, high), the narrow entries taken apart into their single queries."""
        wide = np.flatnonzero(~narrow)
        entry, parts = np.flatnonzero(narrow), [(wide, low[wide], high[wide])]
        for start, step, size in self.q.columns(chunk[entry]):
            k = np.clip(-((start - low[entry]) // step), 0, size)
            n = np.clip(-((start - high[entry] - 1) // step), k, size) - k
            at, place = ragged(n)
            single = (start + k * step)[at] + place * step[at]
            parts.append((entry[at], single, single))
        entry, low, high = (np.concatenate(part) for part in zip(*parts, strict=True))
        order = np.argsort(entry, kind="stable")
        return entry[order], low[order], high[order]

    def touched(self, reach: Reach, kv: int) -> Ints:
        """Count the kernel tiles of chunk `kv` that each reach adds to its run's, by runs."""
        begin, end = self.kv.below(kv, reach.low), self.kv.below(kv, reach.high)
        begin, end = begin // self.tile_kv, np.where(end > begin, -(-end // self.tile_kv), 0)
        end = np.maximum(begin, end)
        order = np.lexsort((begin, reach.run))
        width = int(end.max(initial=0)) + 1
        begin, end = (reach.run[order] * width + x[order] for x in (begin, end))
        seen = np.maximum.accumulate(end)  # runs ascend, so this never carries into the next run
        new: Ints = end - np.maximum(begin, np.concatenate([begin[:1], seen[:-1]]))
        return np.maximum(new, 0)


def _tiles_of_pairs(q: Ints, kv: Ints, cut: Cut) -> Ints:
    """Count the kernel tiles of each listed (q chunk, kv chunk)."""
    order = np.lexsort((q, kv))
    columns, begins = np.unique(kv[order], return_index=True)
    groups = list(zip(columns.tolist(), np.split(order, begins[1:]), strict=True))
    counts = np.zeros(len(q), np.int64)
    wanted = np.zeros(len(cut.q.start), bool)
    wanted[q] = True
    for reach in cut.reaches(wanted):
        for number, pairs in groups:
            begin = np.searchsorted(reach.chunk, q[pairs], side="left")
            rows = np.searchsorted(reach.chunk, q[pairs], side="right") - begin
            which, place = ragged(rows)
            touched = cut.touched(reach.take(begin[which] + place), number)
            np.add.at(counts, pairs[which], touched)
    return counts
