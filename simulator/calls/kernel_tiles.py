"""How many kernel tiles of each (q block, kv block) tile a kernel has to compute.

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
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from planner.analysis.tiles import tiles_of
from planner.masks import region_of
from planner.masks.areas import kinds, sizes
from planner.masks.regions import Ints, overlaps
from planner.partitions import Partition
from planner.workload import Workload
from simulator.calls.position_sets import Sets, ragged, runs_of
from simulator.calls.shapes import shapes

PARTIAL, FULL = 1, 2
CELLS = 1 << 22  # tiles looked at at a time
WORK = 1 << 31  # beyond so many (run, piece, kv block) triples, an upper bound has to do


@lru_cache(maxsize=2)
def kernel_tiles(
    work: Workload, partition: Partition, tile: tuple[int, int]
) -> NDArray[np.integer]:
    """Kernel tiles of `tile` (queries, keys) per pair of chunks: integers [q chunks, kv chunks].

    Exact, but for masks that cut chunks into so many pieces that counting would take minutes;
    there a partial tile counts at most one kernel tile per allowed pair, and at most all of them.
    """
    areas = tiles_of(work, partition).areas
    q_sizes, kv_sizes = sizes(partition.q.chunks), sizes(partition.kv.chunks)
    kind = kinds(areas, q_sizes, kv_sizes)
    rows, columns = -(-q_sizes // tile[0]), -(-kv_sizes // tile[1])
    # Half the memory where it fits, which at thousands of ranks counts.
    small = int(rows.max(initial=0)) * int(columns.max(initial=0)) < 2**31
    counts: NDArray[np.integer] = np.multiply.outer(
        rows, columns, dtype=np.int32 if small else np.int64
    )
    if (kind == PARTIAL).any():
        _count_partial(counts, areas, kind == PARTIAL, Cut.of(work, partition, tile))
    counts[kind == 0] = 0
    counts.flags.writeable = False
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
    q_shapes: tuple[Ints, Ints]
    kv_shapes: tuple[Ints, Ints]
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
            pieces=region_of(work.mask).pieces,
            q=Sets.of(partition.q.chunks, work.offset),
            kv=Sets.of(partition.kv.chunks, 0),
            q_shapes=shapes(partition.q.chunks, work.offset),
            kv_shapes=shapes(partition.kv.chunks, 0),
            chunk=np.repeat(np.arange(len(runs)), [len(run[0]) for run in runs]),
            first=first,
            last=last,
            gap=np.array([run[2] for run in runs], np.int64),
            tile_kv=tile[1],
        )

    @property
    def shift_invariant(self) -> bool:
        """True if only j - i matters: every piece spans all queries and all keys."""
        i0, i1, j0, j1, _, _ = self.pieces.T
        kv = self.kv.start, self.kv.start + self.kv.size * self.kv.step
        rows = (i0 <= self.first.min(initial=0)) & (i1 > self.last.max(initial=0))
        columns = (j0 <= kv[0].min(initial=0)) & (j1 >= kv[1].max(initial=0))
        return bool((rows & columns).all())

    def reaches(self, wanted: NDArray[np.bool_]) -> Iterator[Reach]:
        """What the runs of the wanted chunks reach, whole runs at a time, ordered by chunk."""
        runs = np.flatnonzero(wanted[self.chunk])
        i0, i1 = self.pieces[:, 0], self.pieces[:, 1]
        for mine, piece in overlaps(self.first[runs], self.last[runs] + 1, i0, i1):
            yield self._reach(runs[mine], self.pieces[piece])

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
        """(entry, low, high) with the narrow entries taken apart into their single queries."""
        wide = np.flatnonzero(~narrow)
        entry, found = np.flatnonzero(narrow), [(wide, low[wide], high[wide])]
        for start, step, size in self.q.columns(chunk[entry]):
            k = np.clip(-((start - low[entry]) // step), 0, size)
            n = np.clip(-((start - high[entry] - 1) // step), k, size) - k
            at, place = ragged(n)
            single = (start + k * step)[at] + place * step[at]
            found.append((entry[at], single, single))
        entry, low, high = (np.concatenate(part) for part in zip(*found, strict=True))
        if narrow.any():
            order = np.argsort(entry, kind="stable")
            return entry[order], low[order], high[order]
        return entry, low, high

    def touched(self, reach: Reach, kv: int) -> Ints:
        """How many kernel tiles of chunk `kv` each reach adds to its run's, in order of runs."""
        begin, end = self.kv.below(kv, reach.low), self.kv.below(kv, reach.high)
        begin, end = begin // self.tile_kv, np.where(end > begin, -(-end // self.tile_kv), 0)
        end = np.maximum(begin, end)
        if len(begin) < 2 or (np.diff(reach.run) > 0).all():
            return end - begin
        order = np.lexsort((begin, reach.run))
        width = int(end.max()) + 1
        begin, end = (reach.run[order] * width + x[order] for x in (begin, end))
        seen = np.maximum.accumulate(end)  # runs ascend, so this never carries into the next run
        new: Ints = end - np.maximum(begin, np.concatenate([begin[:1], seen[:-1]]))
        return np.maximum(new, 0)


def _count_partial(
    counts: NDArray[np.integer], areas: Ints, partial: NDArray[np.bool_], cut: Cut
) -> None:
    """Put the numbers of the partial tiles where they belong."""
    if cut.shift_invariant:
        keys, q, kv = _distinct(partial, cut)
        found = _tiles_of_pairs(q, kv, cut)
        for rows, a, b, key in _keyed(partial, cut):
            least = np.searchsorted(keys, key)
            counts[rows][a, b] = np.minimum(counts[rows][a, b], found[least])
    else:
        q, kv = np.nonzero(partial)
        counts[q, kv] = np.minimum(counts[q, kv], _tiles_of_pairs(q, kv, cut))
    np.minimum(counts, areas, out=counts, where=partial)


def _keyed(
    partial: NDArray[np.bool_], cut: Cut
) -> Iterator[tuple[slice, NDArray[np.intp], NDArray[np.intp], Ints]]:
    """Slabs of rows with their partial tiles (row, column) and what tells these apart."""
    (shape, base), (other, origin) = cut.q_shapes, cut.kv_shapes
    height = max(1, CELLS // max(1, partial.shape[1]))
    for at in range(0, len(partial), height):
        rows = slice(at, at + height)
        a, b = np.nonzero(partial[rows])
        kind = shape[rows][a] * (other.max() + 1) + other[b]
        yield rows, a, b, (kind << 33) + (origin[b] - base[rows][a] + (1 << 32))


def _distinct(partial: NDArray[np.bool_], cut: Cut) -> tuple[Ints, Ints, Ints]:
    """One partial tile (q chunk, kv chunk) for each key, the keys ascending."""
    found = []
    for rows, a, b, key in _keyed(partial, cut):
        once, at = np.unique(key, return_index=True)
        found.append((once, a[at] + rows.start, b[at]))
    key, q, kv = (np.concatenate(part) for part in zip(*found, strict=True))
    once, at = np.unique(key, return_index=True)
    return once, q[at], kv[at]


def _tiles_of_pairs(q: Ints, kv: Ints, cut: Cut) -> Ints:
    """Kernel tiles of each listed (q chunk, kv chunk), far too many where counting is too much."""
    order = np.lexsort((q, kv))
    columns, begins = np.unique(kv[order], return_index=True)
    groups = list(zip(columns.tolist(), np.split(order, begins[1:]), strict=True))
    found = np.zeros(len(q), np.int64)
    wanted = np.zeros(len(cut.q.start), bool)
    wanted[q] = True
    work = 0
    for reach in cut.reaches(wanted):
        for column, pairs in groups:
            begin = np.searchsorted(reach.chunk, q[pairs], side="left")
            number = np.searchsorted(reach.chunk, q[pairs], side="right") - begin
            which, place = ragged(number)
            some = reach.take(begin[which] + place)
            np.add.at(found, pairs[which], cut.touched(some, column))
            work += len(which)
        if work > WORK:
            return np.full(len(q), np.iinfo(np.int64).max)
    return found
