"""Keys and values stay, queries go around; each partial result goes straight to its owner.

step t       rank r attends q[r - t] x kv[r]     Q: 0 -> 1 -> 2 -> ... -> P-1
step t + 1   its result -> r - t                 on the links' other direction (TokenRing)
late=1       all results -> owners after the last step, as one all-to-all (pass-Q)
backward     the same: Q, DOUT and STATS travel, DQ returns, DKV never leaves

forward sends   Q P-1, OUT P-1
backward sends  Q P-1, DOUT P-1, DQ P-1

Independent of the KV heads and of kv_seq: for few new tokens onto a long cache.
TokenRing (Wang et al. 2024); pass-Q of Context Parallelism for Inference (Yang et al. 2024).
"""

from typing import Literal

import numpy as np

from ringloom.planner.ir import Attend, Move, Pass, Plan, Step, result
from ringloom.planner.layouts import Layout, by_tokens
from ringloom.planner.schedules.tour import carried
from ringloom.planner.workload import Workload


def tokenring(
    work: Workload, ranks: int, pass_: Pass, *, layout: Layout = "zigzag", late: Literal[0, 1] = 0
) -> Plan:
    """Queries visit every rank, and their results return at once, or `late`."""
    part, rank, steps = by_tokens(work, ranks, layout), np.arange(ranks), list[Step]()
    q, kv = part.q.owned(ranks), part.kv.owned(ranks)
    inputs, sums = carried("q", pass_)[0], (result(pass_),)
    owners = [(rank - t) % ranks for t in range(ranks)]
    back = [Move(sums, q[owner], rank, owner) for owner in owners]
    for t, here in enumerate(owners):
        moves = [Move(inputs, q[here], rank, (rank + 1) % ranks)] if t < ranks - 1 else []
        moves += [back[t - 1]] if t and not late else []
        steps.append(Step((Attend(rank, q[here], kv),), tuple(moves)))
    steps.append(Step((), tuple(back if late else back[-1:])))
    return Plan("tokenring", work, ranks, part, pass_, (), (), tuple(steps))
