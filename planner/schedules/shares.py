"""Independent parts of a mask, such as documents, and the ranks that each part gets.

work of 5 documents   50 24 6 9 11   on 6 ranks -> rings of 3, 1 ranks; the rest on 2
"""

from heapq import heapify, heapreplace
from itertools import pairwise

import numpy as np

from planner.masks.regions import FAR, Region
from planner.workload import Workload


def parts(work: Workload) -> list[tuple[range, range]]:
    """Queries and keys of which nothing meets what is in another part, in their order."""
    here = [[work.offset, work.offset + work.seq, 0, work.kv_seq, -FAR, FAR]]
    pieces = Region.of(here).intersect(work.mask.region()).pieces
    top, bottom, left, right = pieces[np.argsort(pieces[:, 0], kind="stable"), :4].T
    left = np.minimum.accumulate(left[::-1])[::-1]  # of this piece and all that are below
    rows = np.maximum.accumulate(bottom)[:-1] <= top[1:]
    begins = 1 + np.flatnonzero(rows & (np.maximum.accumulate(right)[:-1] <= left[1:]))
    queries = pairwise([0, *(top[begins] - work.offset).tolist(), work.seq])
    keys = pairwise([0, *left[begins].tolist(), work.kv_seq])
    return [(range(*q), range(*kv)) for q, kv in zip(queries, keys, strict=True)]


def shared_out(loads: list[int], ranks: int) -> list[tuple[int, int]]:
    """The first rank and the number of ranks of each load, in proportion, at least one."""
    total = max(1, sum(loads))
    sizes = [load * ranks // total for load in loads]
    short = [n for n, size in enumerate(sizes) if not size]
    kept = -(-sum(loads[n] for n in short) * ranks // total)  # ranks for the short ones
    long = [n for n, size in enumerate(sizes) if size]
    for _ in range(ranks - kept - sum(sizes) if long else 0):
        sizes[max(long, key=lambda n: loads[n] / sizes[n])] += 1
    ends = np.cumsum([0, *sizes]).tolist()
    places = [(end, size) for end, size in zip(ends, sizes, strict=False)]
    free = [(0, rank) for rank in range(ends[-1], ranks)] or [(0, 0)]
    heapify(free)
    for n in sorted(short, key=lambda n: -loads[n]):
        load, rank = free[0]
        places[n] = rank, 1
        heapreplace(free, (load + loads[n], rank))
    return places
