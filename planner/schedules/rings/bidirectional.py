"""Two opposite rings: every block goes halfway around in each direction.

step t       rank r attends q[r] x kv[r - t] and q[r] x kv[r + t]
             kv[r - t] travels on to r + 1, kv[r + t] to r - 1        t = 0..floor(P / 2)
             ... -> r-1 -> r -> r+1 -> ...   and   ... <- r-1 <- r <- r+1 <- ...
backward     dkv follows one step behind, and from the last rank of its way returns

forward sends   KV 2*f*(P-1)
backward sends  KV 2*f*(P-1), DKV 2*f*(P-1)

As many bytes as the ring in half of its rounds: each direction of a link carries half of them.
"""

import numpy as np

from ringloom.planner.ir import Attend, Move, Pass, Plan, Step
from ringloom.planner.layouts import Layout, by_tokens
from ringloom.planner.workload import Workload


def bidirectional(work: Workload, ranks: int, pass_: Pass, *, layout: Layout = "zigzag") -> Plan:
    """Sends KV both ways at once; if P is even, only one way reaches the opposite rank."""
    part, rank, steps = by_tokens(work, ranks, layout), np.arange(ranks), list[Step]()
    q, kv = part.q.owned(ranks), part.kv.owned(ranks)
    most = ranks // 2
    ways = (1, 0), (-1, 1 - ranks % 2)  # the second ring starts later if it is shorter
    for t in range(most + 1 + (pass_ == "backward")):
        attends, moves = [Attend(rank, q, kv)] * (t == 0), list[Move]()
        for way, late in ways:
            here, before = (rank - way * (t - late)) % ranks, (rank - way * (t - late - 1)) % ranks
            onward = (rank + way) % ranks
            if late < t <= most:
                attends.append(Attend(rank, q, kv[here]))
            if late <= t < most:
                moves.append(Move(("KV",), kv[here], rank, onward))
            if pass_ == "backward" and t > late + 1:
                moves.append(Move(("DKV",), kv[before], rank, onward if t <= most else before))
        steps.append(Step(tuple(attends), tuple(moves)))
    return Plan("bidirectional", work, ranks, part, pass_, (), (), tuple(steps))
