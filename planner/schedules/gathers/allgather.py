"""All-gather: every rank fetches every key and value, then attends them in one go.

step 0   kv[r] -> every rank        step 1   rank r attends q[r] x all kv
node=n   kv[r] -> r's node, and the ranks of r's place in other nodes, which pass it on to theirs
backward adds step 2: each rank's share of dkv[k] -> k (a reduce-scatter)

forward sends   KV 2*f*(P-1)
backward sends  KV 2*f*(P-1)*(keep==0), DKV 2*f*(P-1)

A gather is one collective and stays whole under every mask: for windows and documents that see a
few keys take `halo` (`group-cast`), which sends these and no others.
"""

from typing import Literal

import numpy as np

from ringloom.planner.ir import Attend, Pass, Plan, Step
from ringloom.planner.layouts import Layout, by_tokens
from ringloom.planner.passes.adjoint import adjoint
from ringloom.planner.schedules.grid import Grid, divided
from ringloom.planner.workload import Workload


def allgather(
    work: Workload,
    ranks: int,
    pass_: Pass,
    *,
    layout: Layout = "zigzag",
    grain: int = 0,
    keep: Literal[0, 1] = 0,
    node: int = 0,
) -> Plan:
    """KV goes to every rank at once, with node=n once into every node of n ranks.

    keep=1: the backward pass reuses what the forward gathered.
    """
    if pass_ == "backward":
        forward = allgather(work, ranks, "forward", layout=layout, grain=grain, node=node)
        return adjoint(forward, keep=("KV",) if keep else ())
    partition, rank = by_tokens(work, ranks, layout, grain), np.arange(ranks)
    everything = np.broadcast_to(np.arange(len(partition.kv)), (ranks, len(partition.kv)))
    grid, kv = Grid(divided(ranks, node or ranks, "node"), node or ranks), partition.kv.owned(ranks)
    own = grid.gather(0, ("KV",), kv) + grid.gather(1, ("KV",), kv)
    came = (kv[grid.near(0, -hop)] for hop in range(1, grid.shape[0]))  # from other nodes
    passed = tuple(move for blocks in came for move in grid.gather(1, ("KV",), blocks))
    attend = Attend(rank, partition.q.owned(ranks), everything)
    steps = Step((), own), Step((), passed), Step((attend,), ())
    return Plan("allgather", work, ranks, partition, pass_, (), (), tuple(steps))
