"""TokenRing: keys and values stay, queries rotate, and partial results go to their owners.

step t       rank r attends q[r - t] x kv[r]     Q: 0 -> 1 -> 2 -> ... -> P-1
step t + 1   partial result -> r - t             in the opposite direction of the links (TokenRing)
late=1       all results -> owners after the last step, in one all-to-all (pass-Q)
backward     the same: Q, DOUT and STATS travel, DQ returns, DKV stays

forward sends   Q P-1, OUT P-1
backward sends  Q P-1, DOUT P-1, DQ P-1

Traffic is independent of KV heads and kv_seq, which suits few new tokens and a long cache.
TokenRing (Wang et al. 2024); pass-Q of Context Parallelism for Inference (Yang et al. 2024).
"""

from typing import Literal

import numpy as np

from ringloom.planner.ir import Attend, Move, Pass, Plan, Step, result_tensor
from ringloom.planner.layouts import Layout, by_tokens
from ringloom.planner.schedules.tour import travelling_tensors
from ringloom.planner.workload import Workload


def tokenring(
    work: Workload, ranks: int, pass_: Pass, *, layout: Layout = "zigzag", late: Literal[0, 1] = 0
) -> Plan:
    """Rotates queries; partial results return in the next step or, with late=1, at the end."""
    partition, rank, steps = by_tokens(work, ranks, layout), np.arange(ranks), list[Step]()
    q, kv = partition.q.owned(ranks), partition.kv.owned(ranks)
    inputs, sums = travelling_tensors("q", pass_)[0], (result_tensor(pass_),)
    owners = [(rank - t) % ranks for t in range(ranks)]
    returns = [Move(sums, q[owner], rank, owner) for owner in owners]
    for t, owner in enumerate(owners):
        moves = [Move(inputs, q[owner], rank, (rank + 1) % ranks)] if t < ranks - 1 else []
        moves += [returns[t - 1]] if t and not late else []
        steps.append(Step((Attend(rank, q[owner], kv),), tuple(moves)))
    steps.append(Step((), tuple(returns if late else returns[-1:])))
    return Plan("tokenring", work, ranks, partition, pass_, (), (), tuple(steps))
