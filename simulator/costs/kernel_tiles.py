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

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from planner.analysis.tiles import LIVE, tiles_of
from planner.masks.areas import sizes
from planner.masks.regions import FAR, Ints, overlaps
from planner.partitions import Partition, merge
from planner.workload import Workload
from simulator.costs.shapes import Shapes


def kernel_tiles(work: Workload, partition: Partition, tile: tuple[int, int]) -> NDArray[np.int64]:
    """Count kernel tiles of `tile` (queries, keys) per pair of chunks: int64 [q, kv chunks]."""
    q_chunks, kv_chunks = partition.q.chunks, partition.kv.chunks
    kind = tiles_of(work, partition).chunk_kinds[:-1, :-1]
    counts = np.multiply.outer(-(-sizes(q_chunks) // tile[0]), -(-sizes(kv_chunks) // tile[1]))
    counts[kind & LIVE == 0] = 0
    q, kv = np.nonzero(kind == LIVE)  # and not FULL
    keys = Shapes.of(work, partition).keys(q, kv)
    _, at, which = np.unique(keys, return_index=True, return_inverse=True)
    pieces, partial = work.mask.region().pieces, np.zeros(len(at), np.int64)
    for chunk in np.unique(q[at]):
        reach = _reach(merge(q_chunks[chunk]) + work.offset, pieces, tile[0])
        for pair in np.flatnonzero(q[at] == chunk):
            partial[pair] = _touched(reach, merge(kv_chunks[kv[at[pair]]]), tile[1])
    counts[q, kv] = partial[which]
    return counts


class Reach(NamedTuple):
    """Keys [low, high) that run number `run` of a q chunk reaches through one piece."""

    run: Ints
    low: Ints
    high: Ints


def _reach(queries: Ints, pieces: Ints, width: int) -> Reach:
    """Return what runs of `width` queries, at their aligned positions, reach."""
    i0, i1, j0, j1, lo, hi = pieces.T
    # A band narrower than the gaps between queries has gaps too: then the run is in parts.
    apart = 1 + np.flatnonzero(np.diff(queries) > (hi - lo).min(initial=FAR) + 1)
    begin = np.union1d(np.arange(0, len(queries), width), apart)
    end = np.append(begin[1:], len(queries))
    reaches = [np.zeros((3, 0), np.int64)]
    for part, piece in overlaps(queries[begin], queries[end - 1] + 1, i0, i1):
        first = np.maximum(begin[part], np.searchsorted(queries, i0[piece]))
        last = np.minimum(end[part], np.searchsorted(queries, i1[piece])) - 1
        met = np.flatnonzero(first <= last)
        first, last, part, piece = first[met], last[met], part[met], piece[met]
        low = np.maximum(j0[piece], queries[first] + lo[piece])
        high = np.minimum(j1[piece], queries[last] + hi[piece] + 1)
        reaches.append(np.stack([begin[part] // width, low, high])[:, low < high])
    return Reach(*np.concatenate(reaches, axis=1))


def _touched(reach: Reach, keys: Ints, width: int) -> int:
    """Count the tiles of `width` keys that each run reaches, summed over the runs."""
    begin, end = (np.searchsorted(keys, ends) for ends in (reach.low, reach.high))
    begin, end = begin // width, np.where(end > begin, -(-end // width), 0)
    end = np.maximum(begin, end)
    tall = int(end.max(initial=0)) + 1
    order = np.lexsort((begin, reach.run))
    begin, end = (reach.run[order] * tall + x[order] for x in (begin, end))
    seen = np.maximum.accumulate(end)  # runs ascend, so this never carries into the next run
    new = end - np.maximum(begin, np.concatenate([begin[:1], seen[:-1]]))
    return int(np.maximum(new, 0).sum())
