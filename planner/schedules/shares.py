"""Divides ranks among independent parts of a mask, such as documents.

work of 5 documents   50 24 6 9 11   on 6 ranks -> 3 ranks and 1 rank; the last three on 2 ranks
"""

import numpy as np

from ringloom.planner.layouts.dispatch import assign_least_loaded


def divide_ranks(loads: list[int], ranks: int) -> list[tuple[int, int]]:
    """Returns the first rank and the number of ranks of each load; small loads share ranks."""
    total = max(1, sum(loads))
    sizes = [load * ranks // total for load in loads]
    small = [n for n, size in enumerate(sizes) if not size]
    reserved = -(-sum(loads[n] for n in small) * ranks // total)  # ranks for the small parts
    large = [n for n, size in enumerate(sizes) if size]
    for _ in range(ranks - reserved - sum(sizes) if large else 0):
        sizes[max(large, key=lambda n: loads[n] / sizes[n])] += 1
    ends = np.cumsum([0, *sizes]).tolist()
    shares = [(end, size) for end, size in zip(ends, sizes, strict=False)]
    first_shared = ends[-1] if ends[-1] < ranks else 0  # of the ranks that small parts share
    work = np.array([loads[n] for n in small], np.float64)[:, None]
    owners = assign_least_loaded(work, max(1, ranks - ends[-1]), len(small)).tolist()
    for n, rank in zip(small, owners, strict=True):
        shares[n] = first_shared + rank, 1
    return shares
