"""Cuts keys where the set of ranks that see them changes.

kv of rank r under a causal window of 2:   | . . . . | . . |   seen by rank r; by r and r + 1
"""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ringloom.planner.layouts import Chunks
from ringloom.planner.masks.regions import FAR, Region
from ringloom.planner.partitions import Ranges
from ringloom.planner.workload import Workload

Users = NDArray[np.bool_]


def cut_by_users(work: Workload, ranks: int, queries: Chunks, keys: Chunks) -> tuple[Chunks, Users]:
    """Returns pieces of the keys, and True for ranks that see a piece: bool [pieces, ranks].

    Treats a strided range of queries as a contiguous range with the same ends.
    """
    edges, visible = _intervals(work, ranks, queries)
    pieces, masks = Chunks(), list[Users]()
    for positions, owner in keys:
        slices = _cut(positions, edges) or {0: ()}
        pieces += [(part, owner) for part in slices.values()]
        masks += [visible[n] for n in slices]
    return pieces, np.array(masks)


def _intervals(work: Workload, ranks: int, queries: Chunks) -> tuple[list[int], Users]:
    """Returns the edges of key intervals, and True for ranks that see an interval."""
    region, intervals = work.mask.region(), list[tuple[int, int, int]]()
    for positions, rank in queries:
        hulls = [(p[0] + work.offset, p[-1] + 1 + work.offset) for p in positions if p]
        rows = Region.of([[*hull, 0, work.kv_seq, -FAR, FAR] for hull in hulls])
        pieces = rows.intersect(region).pieces if hulls else np.empty((0, 6), np.int64)
        intervals += [(rank, low, high) for low, high in pieces[:, 2:4].tolist()]
    edges = sorted({0, work.kv_seq} | {end for _, *bounds in intervals for end in bounds})
    visible = np.zeros((len(edges) - 1, ranks), np.bool_)
    for rank, low, high in intervals:
        visible[bisect_left(edges, low) : bisect_left(edges, high), rank] = True
    changes = [n for n in range(len(visible)) if n == 0 or (visible[n] != visible[n - 1]).any()]
    return [*(edges[n] for n in changes), work.kv_seq], visible[changes]


def _cut(positions: Ranges, edges: Sequence[int]) -> dict[int, Ranges]:
    """Returns the positions in each non-empty interval between edges, by interval number."""
    pieces = defaultdict[int, list[range]](list)
    for part in filter(None, positions):
        first, last = bisect_right(edges, part[0]) - 1, bisect_right(edges, part[-1])
        cuts = [bisect_left(part, edge) for edge in edges[first : last + 1]]
        for n, (a, b) in enumerate(pairwise(cuts), first):
            if a < b:
                pieces[n].append(part[a:b])
    return {n: tuple(pieces[n]) for n in sorted(pieces)}
