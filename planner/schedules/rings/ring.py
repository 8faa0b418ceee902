"""One ring: queries stay, keys and values visit every rank (Ring, Striped and zigzag attention).

step t      rank r attends q[r] x kv[r - t]      kv[r - t] -> r + 1
backward    the same, and dkv[r - t + 1] follows one step behind its kv and is back after P hops
            KV: 0 -> 1 -> 2 -> ... -> P-1 -> 0

forward sends   KV 2*f*(P-1)
backward sends  KV 2*f*(P-1), DKV 2*f*P*(P>1)
"""

import numpy as np

from ringloom.planner.ir import Pass, Plan
from ringloom.planner.layouts import Layout, by_tokens
from ringloom.planner.masks.mask import SideName
from ringloom.planner.partitions import Partition
from ringloom.planner.schedules.tour import rotations, tour, travelling_tensors
from ringloom.planner.workload import Workload


def ring(
    work: Workload, ranks: int, pass_: Pass, *, layout: Layout = "contiguous", grain: int = 0
) -> Plan:
    """Rotates KV one hop per round (Ring Attention section 3; Striped Attention section 3)."""
    return one_ring("kv", work, by_tokens(work, ranks, layout, grain), ranks, pass_)


def one_ring(side: SideName, work: Workload, partition: Partition, ranks: int, pass_: Pass) -> Plan:
    """Sends the blocks of one side to every rank in turn; their sums follow one step behind."""
    visitors = partition.side(side).owned(ranks)
    stationary = partition.side("kv" if side == "q" else "q").owned(ranks)
    next_rank = (np.arange(ranks, dtype=np.int32) + 1) % ranks
    steps = tour(side, stationary, rotations(visitors), [next_rank] * ranks, pass_)
    inputs, sums = travelling_tensors(side, pass_)
    slots = dict.fromkeys(inputs, 2) | dict.fromkeys(sums if ranks > 1 else (), 3)
    buffers = tuple((t, n * visitors.shape[1]) for t, n in slots.items())
    return Plan("ring", work, ranks, partition, pass_, (), buffers, tuple(steps))
