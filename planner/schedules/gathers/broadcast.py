"""Broadcasts in turn: in step t, rank t sends its blocks to all ranks.

step t       kv[t] -> every rank                 side=q    q[t] -> every rank
step t + 1   every rank attends q[r] x kv[t]               q[t] x kv[r]
step t + 2   dkv[t] of every rank -> t                     out[t] or dq[t] of every rank -> t

forward sends   KV 2*f*(P-1)*(side=="kv"), Q (P-1)*(side=="q"), OUT (P-1)*(side=="q")
backward sends  KV 2*f*(P-1)*(side=="kv"), DKV 2*f*(P-1)*(side=="kv"), Q (P-1)*(side=="q"),
                DOUT (P-1)*(side=="q"), DQ (P-1)*(side=="q")

Sends the bytes of the ring, but from one rank at a time, for networks whose switches multicast.
ringX (Yin et al. 2025).
"""

import numpy as np

from ringloom.planner.ir import Attend, Move, Pass, Plan, Step
from ringloom.planner.layouts import Layout, by_tokens
from ringloom.planner.masks.mask import SideName
from ringloom.planner.schedules.tour import travelling_tensors
from ringloom.planner.workload import Workload


def broadcast(
    work: Workload, ranks: int, pass_: Pass, *, side: SideName = "kv", layout: Layout = "zigzag"
) -> Plan:
    """Broadcasts KV and reduces DKV; with side=q, broadcasts queries and reduces results."""
    partition, rank, steps = by_tokens(work, ranks, layout), np.arange(ranks), list[Step]()
    q, kv = partition.q.owned(ranks), partition.kv.owned(ranks)
    travelling, (inputs, sums) = (q if side == "q" else kv), travelling_tensors(side, pass_)
    for t in range(ranks + 2):
        moves, attends = list[Move](), list[Attend]()
        if t < ranks:
            moves.append(Move(inputs, travelling[np.full(ranks, t)], np.full(ranks, t), rank))
        if 0 < t <= ranks:
            sent = travelling[np.full(ranks, t - 1)]
            attends.append(Attend(rank, *((sent, kv) if side == "q" else (q, sent))))
        if t > 1 and sums:
            moves.append(Move(sums, travelling[np.full(ranks, t - 2)], rank, np.full(ranks, t - 2)))
        steps.append(Step(tuple(attends), tuple(moves)))
    return Plan("broadcast", work, ranks, partition, pass_, (), (), tuple(steps))
