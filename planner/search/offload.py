"""Offload: rows of ranks that end late run on ranks that end early.

Queries go there, their results return; keys are cast to the ranks that compute.
"""

from collections import defaultdict

import numpy as np

from ringloom.planner.layouts import Chunks, cut
from ringloom.planner.layouts.pieces import gathered
from ringloom.planner.search.parts import Placed
from ringloom.planner.search.pieces import counted
from ringloom.planner.search.prices import Prices
from ringloom.planner.workload import Workload

EVEN = 0.01  # of the mean time of a rank: less than that apart is even


def placed(chunks: Chunks) -> list[Placed]:
    """Queries that run where they live."""
    return [(p, home, home) for positions, home in chunks for p in positions]


def offloaded(
    work: Workload, ranks: int, prices: Prices, chunks: Chunks, grain: int
) -> list[Placed]:
    """Takes pieces of `grain` tokens from the rank that ends last to the one that ends first."""
    pieces, home = list[range](), list[int]()
    for positions, rank in chunks:
        for p in positions:
            parts = cut(len(p), max(1, round(len(p) / grain)))
            pieces += [p[c.start : c.stop] for c in parts]
            home += [rank] * len(parts)
    owner = np.array(home, np.intp)
    runs_on, seconds = owner.copy(), counted(work, prices, pieces).seconds
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
        for ((positions, _),) in [gathered(ps, [0] * len(ps), 1)]
        for p in positions
    ]
