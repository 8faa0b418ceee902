"""All-gather: every rank fetches all keys and values, then attends in one step.

step 0   kv[r] -> every rank        step 1   rank r attends q[r] x all kv
node=n   kv[r] -> the node of r, and the peers of r in other nodes, which forward kv[r] there
backward adds step 2: each rank's part of dkv[k] -> k (a reduce-scatter)

forward sends   KV 2*f*(P-1)
backward sends  KV 2*f*(P-1)*(keep==0), DKV 2*f*(P-1)

A gather is one collective and sends all keys under every mask. For windows and documents that see
few keys, use `halo` (`group-cast`), which sends only visible keys.
"""

from typing import Literal

import numpy as np

from ringloom.planner.ir import Attend, Pass, Plan, Step
from ringloom.planner.layouts import Layout, by_tokens
from ringloom.planner.passes.adjoint import adjoint
from ringloom.planner.schedules.grid import Grid, divide
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
    """Sends KV to every rank in one step; with node=n, sends KV once to every node of n ranks.

    With keep=1, the backward pass reuses the KV that the forward pass gathered.
    """
    if pass_ == "backward":
        forward = allgather(work, ranks, "forward", layout=layout, grain=grain, node=node)
        return adjoint(forward, keep=("KV",) if keep else ())
    partition, rank = by_tokens(work, ranks, layout, grain), np.arange(ranks)
    all_kv = np.broadcast_to(np.arange(len(partition.kv)), (ranks, len(partition.kv)))
    grid, kv = Grid(divide(ranks, node or ranks, "node"), node or ranks), partition.kv.owned(ranks)
    direct = grid.gather(0, ("KV",), kv) + grid.gather(1, ("KV",), kv)
    remote = (kv[grid.neighbour(0, -hop)] for hop in range(1, grid.shape[0]))  # from other nodes
    forwards = tuple(move for blocks in remote for move in grid.gather(1, ("KV",), blocks))
    attend = Attend(rank, partition.q.owned(ranks), all_kv)
    steps = Step((), direct), Step((), forwards), Step((attend,), ())
    return Plan("allgather", work, ranks, partition, pass_, (), (), tuple(steps))
