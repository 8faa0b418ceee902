"""Cuts keys where the set of ranks that see them changes.

kv of rank r under a causal window of 2:   | . . . . | . . |   only rank r; r and r + 1
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


def by_users(work: Workload, ranks: int, queries: Chunks, keys: Chunks) -> tuple[Chunks, Users]:
    """Returns pieces of the keys, and the ranks whose queries see each: bool [pieces, ranks].

    A strided range of queries counts as seeing whatever a query between its ends sees.
    """
    edges, seen = _intervals(work, ranks, queries)
    pieces, users = Chunks(), list[Users]()
    for whole, owner in keys:
        parts = _cut(whole, edges) or {0: ()}
        pieces += [(part, owner) for part in parts.values()]
        users += [seen[n] for n in parts]
    return pieces, np.array(users)


def _intervals(work: Workload, ranks: int, queries: Chunks) -> tuple[list[int], Users]:
    """Returns the edges of intervals of keys, and the ranks that see each interval."""
    region, spans = work.mask.region(), list[tuple[int, int, int]]()
    for positions, rank in queries:
        hulls = [(p[0] + work.offset, p[-1] + 1 + work.offset) for p in positions if p]
        rows = Region.of([[*hull, 0, work.kv_seq, -FAR, FAR] for hull in hulls])
        pieces = rows.intersect(region).pieces if hulls else np.empty((0, 6), np.int64)
        spans += [(rank, low, high) for low, high in pieces[:, 2:4].tolist()]
    ends = sorted({0, work.kv_seq} | {end for _, *both in spans for end in both})
    seen = np.zeros((len(ends) - 1, ranks), np.bool_)
    for rank, low, high in spans:
        seen[bisect_left(ends, low) : bisect_left(ends, high), rank] = True
    fresh = [n for n in range(len(seen)) if n == 0 or (seen[n] != seen[n - 1]).any()]
    return [*(ends[n] for n in fresh), work.kv_seq], seen[fresh]


def _cut(positions: Ranges, edges: Sequence[int]) -> dict[int, Ranges]:
    """Returns the positions in each non-empty interval between edges, by interval number."""
    pieces = defaultdict[int, list[range]](list)
    for part in filter(None, positions):
        first, last = bisect_right(edges, part[0]) - 1, bisect_right(edges, part[-1])
        marks = [bisect_left(part, edge) for edge in edges[first : last + 1]]
        for n, (a, b) in enumerate(pairwise(marks), first):
            if a < b:
                pieces[n].append(part[a:b])
    return {n: tuple(pieces[n]) for n in sorted(pieces)}
