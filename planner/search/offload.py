"""Offload: ranks that finish early run rows of ranks that finish late.

The owner sends queries to the other rank, and receives their results; keys go to the other rank.
"""

from collections import defaultdict

import numpy as np

from ringloom.planner.layouts import Chunks, cut
from ringloom.planner.layouts.pieces import gather_ranges
from ringloom.planner.search.parts import PlacedQueries
from ringloom.planner.search.pieces import count_load
from ringloom.planner.search.prices import Prices
from ringloom.planner.workload import Workload

EVEN_SHARE = 0.01  # differences below this share of the average time count as even


def place_at_owners(chunks: Chunks) -> list[PlacedQueries]:
    """Places queries on their owners."""
    return [(p, owners, owners) for positions, owners in chunks for p in positions]


def offload_rows(
    work: Workload, ranks: int, prices: Prices, chunks: Chunks, grain: int
) -> list[PlacedQueries]:
    """Moves pieces of about `grain` tokens from the rank that finishes last to the first."""
    pieces, owners = list[range](), list[int]()
    for positions, rank in chunks:
        for p in positions:
            parts = cut(len(p), max(1, round(len(p) / grain)))
            pieces += [p[c.start : c.stop] for c in parts]
            owners += [rank] * len(parts)
    owner = np.array(owners, np.intp)
    runs_on, seconds = owner.copy(), count_load(work, prices, pieces).seconds
    speeds, loads = prices.speed_of_ranks(ranks), np.bincount(owner, seconds, ranks)
    for _ in range(len(pieces)):
        times = loads / speeds
        last, first = int(times.argmax()), int(times.argmin())
        gap = times[last] - times[first]
        candidates = np.flatnonzero((runs_on == last) & (owner == last))
        cost = seconds[candidates]
        gain = np.minimum(cost / speeds[last], gap - cost / speeds[first])
        if gap < EVEN_SHARE * times.mean() or not len(candidates) or gain.max() <= 0:
            break
        piece = candidates[int(gain.argmax())]
        runs_on[piece] = first
        loads[last] -= seconds[piece]
        loads[first] += seconds[piece]
    groups = defaultdict[tuple[int, int], list[range]](list)
    for p, h, r in zip(pieces, owners, runs_on.tolist(), strict=True):
        groups[h, r].append(p)
    return [
        (p, h, r)
        for (h, r), ps in sorted(groups.items())
        for ((positions, _),) in [gather_ranges(ps, [0] * len(ps), 1)]
        for p in positions
    ]
