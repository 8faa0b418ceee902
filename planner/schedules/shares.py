"""Divides ranks among independent parts of a mask, such as documents.

work of 5 documents   50 24 6 9 11   on 6 ranks -> rings of 3 and 1 ranks; the others on 2 ranks
"""

import numpy as np

from ringloom.planner.layouts.dispatch import to_least_loaded


def divide_ranks(loads: list[int], ranks: int) -> list[tuple[int, int]]:
    """Returns the first rank and the number of ranks, at least one, for each load."""
    total = max(1, sum(loads))
    sizes = [load * ranks // total for load in loads]
    short = [n for n, size in enumerate(sizes) if not size]
    kept = -(-sum(loads[n] for n in short) * ranks // total)  # ranks for the short parts
    long = [n for n, size in enumerate(sizes) if size]
    for _ in range(ranks - kept - sum(sizes) if long else 0):
        sizes[max(long, key=lambda n: loads[n] / sizes[n])] += 1
    ends = np.cumsum([0, *sizes]).tolist()
    places = [(end, size) for end, size in zip(ends, sizes, strict=False)]
    first = ends[-1] if ends[-1] < ranks else 0  # first of the ranks that short parts share
    work = np.array([loads[n] for n in short], np.float64)[:, None]
    owners = to_least_loaded(work, max(1, ranks - ends[-1]), len(short)).tolist()
    for n, rank in zip(short, owners, strict=True):
        places[n] = first + rank, 1
    return places
