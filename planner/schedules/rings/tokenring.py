"""TokenRing: keys and values stay, queries rotate; partial results go straight to their owners.

step t       rank r attends q[r - t] x kv[r]     Q: 0 -> 1 -> 2 -> ... -> P-1
step t + 1   its result -> r - t                 in the opposite direction of the links (TokenRing)
late=1       all results -> owners after the last step, as one all-to-all (pass-Q)
backward     the same: Q, DOUT and STATS travel, DQ returns, DKV never leaves

forward sends   Q P-1, OUT P-1
backward sends  Q P-1, DOUT P-1, DQ P-1

Traffic is independent of KV heads and kv_seq: for few new tokens on a long cache.
TokenRing (Wang et al. 2024); pass-Q of Context Parallelism for Inference (Yang et al. 2024).
"""

from typing import Literal

import numpy as np

from ringloom.planner.ir import Attend, Move, Pass, Plan, Step, result
from ringloom.planner.layouts import Layout, by_tokens
from ringloom.planner.schedules.tour import travelling_tensors
from ringloom.planner.workload import Workload


def tokenring(
    work: Workload, ranks: int, pass_: Pass, *, layout: Layout = "zigzag", late: Literal[0, 1] = 0
) -> Plan:
    """Sends queries to every rank in turn; their results return at once, or `late`."""
    part, rank, steps = by_tokens(work, ranks, layout), np.arange(ranks), list[Step]()
    q, kv = part.q.owned(ranks), part.kv.owned(ranks)
    inputs, sums = travelling_tensors("q", pass_)[0], (result(pass_),)
    owners = [(rank - t) % ranks for t in range(ranks)]
    back = [Move(sums, q[owner], rank, owner) for owner in owners]
    for t, here in enumerate(owners):
        moves = [Move(inputs, q[here], rank, (rank + 1) % ranks)] if t < ranks - 1 else []
        moves += [back[t - 1]] if t and not late else []
        steps.append(Step((Attend(rank, q[here], kv),), tuple(moves)))
    steps.append(Step((), tuple(back if late else back[-1:])))
    return Plan("tokenring", work, ranks, part, pass_, (), (), tuple(steps))
