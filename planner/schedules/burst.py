"""BurstAttention: the forward pass is a ring of KV; in the backward pass the query side travels.

backward, step t   rank r attends q[r - t] x kv[r]   Q, DOUT and STATS of r - t go on to r + 1
                   dq[r - t + 1] follows one step behind, home after P hops; DKV never leaves

   Q DOUT STATS: 0 -> 1 -> ... -> P-1 -> 0      3BZNd + 2BZN elements against the ring's 4BZNd
"""

from planner.ir import Pass, Plan
from planner.schedules.ring import around
from planner.workload import Workload


def burst(
    work: Workload, ranks: int, pass_: Pass, *, layout: str = "zigzag", grain: int = 1
) -> Plan:
    """KV travels forward, the query side backward (BurstAttention, section 3.1, algorithm 2)."""
    side = "kv" if pass_ == "forward" else "q"
    return around(side, work, ranks, pass_, layout, grain)
