"""BurstAttention: KV travels in the forward pass, the query side in the backward pass.

backward, step t   rank r attends q[r - t] x kv[r]   Q, DOUT and STATS of r - t -> r + 1
                   dq[r - t + 1] follows one step behind and is back after P hops; DKV stays

   Q DOUT STATS: 0 -> 1 -> ... -> P-1 -> 0

forward sends   KV 2*f*(P-1)
backward sends  Q P-1, DOUT P-1, DQ P*(P>1)      less than the ring's 4f only where f > 3/4
"""

from ringloom.planner.ir import Pass, Plan
from ringloom.planner.layouts import Layout, by_tokens
from ringloom.planner.schedules.rings.ring import one_ring
from ringloom.planner.workload import Workload


def burst(
    work: Workload, ranks: int, pass_: Pass, *, layout: Layout = "zigzag", grain: int = 0
) -> Plan:
    """Rotates KV in the forward pass, the query side in the backward pass (BurstAttention 3.1)."""
    partition = by_tokens(work, ranks, layout, grain)
    return one_ring("kv" if pass_ == "forward" else "q", work, partition, ranks, pass_)
