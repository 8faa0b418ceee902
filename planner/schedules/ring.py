"""One ring: queries stay, keys and values visit every rank (Ring, Striped and zigzag attention).

step t      rank r attends q[r] x kv[r - t]      kv[r - t] travels on to r + 1
backward    the same, and dkv[r - t + 1] follows one step behind its kv, home after P hops
            KV: 0 -> 1 -> 2 -> ... -> P-1 -> 0
"""

import numpy as np

from planner.ir import ACCUMULATORS, QUERY_SIDE, TENSORS, Attend, Move, Pass, Plan, Step
from planner.layouts import by_tokens
from planner.workload import Workload


def ring(
    work: Workload, ranks: int, pass_: Pass, *, layout: str = "contiguous", grain: int = 1
) -> Plan:
    """K and V travel one hop per round (Ring Attention section 3; Striped Attention section 3)."""
    return around("kv", work, ranks, pass_, layout, grain)


def around(side: str, work: Workload, ranks: int, pass_: Pass, layout: str, grain: int) -> Plan:
    """One side visits every rank; what it adds up, if anything, follows one step behind."""
    partition, rank = by_tokens(work, ranks, layout, grain), np.arange(ranks, dtype=np.int32)
    owned = {"q": partition.q.owned(ranks), "kv": partition.kv.owned(ranks)}
    copies = QUERY_SIDE[pass_] if side == "q" else ("KV",)
    sums = tuple(t for t in ACCUMULATORS[pass_] if TENSORS[t].side == side and ranks > 1)
    following, visitors, steps = (rank + 1) % ranks, owned[side], list[Step]()
    twice = np.concatenate([visitors, visitors])
    for t in range(ranks + len(sums)):
        here = owned | {side: twice[-t % ranks :][:ranks]}
        moves = [Move(copies, here[side], rank, following)] if t < ranks - 1 else []
        if sums and t:
            moves.append(Move(sums, twice[(1 - t) % ranks :][:ranks], rank, following))
        attends = (Attend(rank, here["q"], here["kv"]),) if t < ranks else ()
        steps.append(Step(attends, tuple(moves)))
    slots = dict.fromkeys(copies, 2) | dict.fromkeys(sums, 3)
    buffers = tuple((t, n * visitors.shape[1]) for t, n in slots.items())
    return Plan("ring", work, ranks, partition, pass_, (), buffers, tuple(steps))
