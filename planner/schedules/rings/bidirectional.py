"""Two opposite rings: every block goes halfway around in each direction.

step t       rank r attends q[r] x kv[r - t] and q[r] x kv[r + t]
             kv[r - t] -> r + 1 and kv[r + t] -> r - 1                t = 0..floor(P / 2)
             ... -> r-1 -> r -> r+1 -> ...   and   ... <- r-1 <- r <- r+1 <- ...
backward     dkv follows one step behind, then returns from its last rank to its owner

forward sends   KV 2*f*(P-1)
backward sends  KV 2*f*(P-1), DKV 2*f*(P-1)

Sends the bytes of the ring in half of its rounds: each direction of a link carries half of them.
"""

import numpy as np

from ringloom.planner.ir import Attend, Move, Pass, Plan, Step
from ringloom.planner.layouts import Layout, by_tokens
from ringloom.planner.workload import Workload


def bidirectional(work: Workload, ranks: int, pass_: Pass, *, layout: Layout = "zigzag") -> Plan:
    """Rotates KV in both directions; for even P, only one ring reaches the opposite rank."""
    partition, rank, steps = by_tokens(work, ranks, layout), np.arange(ranks), list[Step]()
    q, kv = partition.q.owned(ranks), partition.kv.owned(ranks)
    last = ranks // 2
    rings = (1, 0), (-1, 1 - ranks % 2)  # the second ring starts later if it is shorter
    for t in range(last + 1 + (pass_ == "backward")):
        attends, moves = [Attend(rank, q, kv)] * (t == 0), list[Move]()
        for direction, delay in rings:
            current, previous = (
                (rank - direction * (t - delay)) % ranks,
                (rank - direction * (t - delay - 1)) % ranks,
            )
            dst = (rank + direction) % ranks
            if delay < t <= last:
                attends.append(Attend(rank, q, kv[current]))
            if delay <= t < last:
                moves.append(Move(("KV",), kv[current], rank, dst))
            if pass_ == "backward" and t > delay + 1:
                moves.append(Move(("DKV",), kv[previous], rank, dst if t <= last else previous))
        steps.append(Step(tuple(attends), tuple(moves)))
    return Plan("bidirectional", work, ranks, partition, pass_, (), (), tuple(steps))
