"""Offload: ranks that finish early run rows of ranks that finish late.

Queries are sent there, and their results return; keys are sent to the ranks that compute.
"""

from collections import defaultdict

import numpy as np

from ringloom.planner.layouts import Chunks, cut
from ringloom.planner.layouts.pieces import gather_ranges
from ringloom.planner.search.parts import Placed
from ringloom.planner.search.pieces import count_load
from ringloom.planner.search.prices import Prices
from ringloom.planner.workload import Workload

EVEN = 0.01  # differences below this share of the average time count as even


def at_owners(chunks: Chunks) -> list[Placed]:
    """Returns queries that run on their owners."""
    return [(p, home, home) for positions, home in chunks for p in positions]


def offload_rows(
    work: Workload, ranks: int, prices: Prices, chunks: Chunks, grain: int
) -> list[Placed]:
    """Moves pieces of `grain` tokens from the last rank to finish to the first."""
    pieces, home = list[range](), list[int]()
    for positions, rank in chunks:
        for p in positions:
            parts = cut(len(p), max(1, round(len(p) / grain)))
            pieces += [p[c.start : c.stop] for c in parts]
            home += [rank] * len(parts)
    owner = np.array(home, np.intp)
    runs_on, seconds = owner.copy(), count_load(work, prices, pieces).seconds
    speeds, ends = prices.speed(ranks), np.bincount(owner, seconds, ranks)
    for _ in range(len(pieces)):
        times = ends / speeds
        last, first = int(times.argmax()), int(times.argmin())
        gap = times[last] - times[first]
        here = np.flatnonzero((runs_on == last) & (owner == last))
        gain = np.minimum(seconds[here] / speeds[last], gap - seconds[here] / speeds[first])
        if gap < EVEN * times.mean() or not len(here) or gain.max() <= 0:
            break
        piece = here[int(gain.argmax())]
        runs_on[piece] = first
        ends[last] -= seconds[piece]
        ends[first] += seconds[piece]
    groups = defaultdict[tuple[int, int], list[range]](list)
    for p, h, r in zip(pieces, home, runs_on.tolist(), strict=True):
        groups[h, r].append(p)
    return [
        (p, h, r)
        for (h, r), ps in sorted(groups.items())
        for ((positions, _),) in [gather_ranges(ps, [0] * len(ps), 1)]
        for p in positions
    ]
