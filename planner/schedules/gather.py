"""All-gather: every rank fetches every key and value, then attends them in one go.

step 0   kv[r] -> every rank        step 1   rank r attends q[r] x all kv
backward adds step 2: each rank's share of dkv[k] -> k (a reduce-scatter)
"""

import numpy as np

from planner.ir import Attend, Move, Pass, Plan, Step
from planner.partitions import by_tokens
from planner.passes.adjoint import adjoint
from planner.workload import Workload


def allgather(
    work: Workload,
    ranks: int,
    pass_: Pass,
    *,
    layout: str = "zigzag",
    grain: int = 1,
    keep: int = 0,
) -> Plan:
    """KV goes to every rank at once; keep=1: the backward pass reuses what the forward gathered."""
    if pass_ == "backward":
        forward = allgather(work, ranks, "forward", layout=layout, grain=grain)
        return adjoint(forward, keep=("KV",) if keep else ())
    partition = by_tokens(work, ranks, layout, grain)
    q, kv, rank = partition.q.owned(ranks), partition.kv.owned(ranks), np.arange(ranks)
    sends = [Move(("KV",), kv, rank, (rank + hop) % ranks) for hop in range(1, ranks)]
    everything = np.broadcast_to(np.arange(len(partition.kv)), (ranks, len(partition.kv)))
    steps = Step((), tuple(sends)), Step((Attend(rank, q, everything),), ())
    return Plan("allgather", work, ranks, partition, pass_, (), (), tuple(filter(None, steps)))
