"""Work per round and rank in exact (query, key) pairs, and the imbalance of the work."""

import numpy as np
from numpy.typing import NDArray

from ringloom.planner.analysis.tiles import tiles
from ringloom.planner.ir import Plan


def loads(plan: Plan) -> NDArray[np.int64]:
    """Counts allowed (query, key, head) triples per round and rank, batch 1: [rounds, ranks]."""
    table, counts = tiles(plan), np.zeros((len(plan.steps), plan.ranks), np.int64)
    for number, attend in plan.attends():
        pairs = table.pairs(attend.q[:, :, None], attend.kv[:, None, :]).sum(axis=(1, 2))
        np.add.at(counts[number], attend.rank, pairs)
    if plan.rounds < len(plan.steps):
        counts = counts[[bool(step.attends) for step in plan.steps]]
    return counts


def imbalance(plan: Plan) -> float:
    """Returns the time of a lockstep run relative to perfect balance, counting only pairs.

    Sums the pairs of the busiest rank of each round and divides by the average: 1 is perfect; a
    causal contiguous ring approaches 2 (Striped Attention, section 2).
    """
    counts = loads(plan)
    total = counts.sum()
    return float(counts.max(axis=1).sum() * plan.ranks / total) if total else 1.0
