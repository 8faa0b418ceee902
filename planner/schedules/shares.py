"""Ranks for independent parts of a mask, such as documents.

work of 5 documents   50 24 6 9 11   on 6 ranks -> rings of 3, 1 ranks; the rest on 2
"""

from heapq import heapify, heapreplace

import numpy as np


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
