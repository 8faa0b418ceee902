"""DistFlashAttn: ranks without work left under a causal mask help other ranks.

    step t   rank p >= t   kv[p - t] -> p          rank p attends q[p] x kv[p - t]
             rank p <  t   q[P + p - t] -> p       rank p attends q[P + p - t] x kv[p];
                           partial out[P + p - t] -> its owner in the next step
    t = 0..floor(P/2): half of the ring's rounds; for even P, no rank helps in the last round.

These steps cover the tiles on and below the diagonal. The tiles above the diagonal, which a causal
mask drops, use the mirror image, in which rank p takes the role of P - 1 - p.

With h = floor((P-1)/2), for all tiles:
forward sends   KV 2*f*(P-1-h*(h+1)/P), Q h*(h+1)/P, OUT h*(h+1)/P
backward sends  KV 2*f*(P-1-h*(h+1)/P), DKV 2*f*(P-1-h*(h+1)/P), Q h*(h+1)/P, DOUT h*(h+1)/P,
                DQ h*(h+1)/P
"""

import numpy as np
from numpy.typing import NDArray

from ringloom.planner.ir import Attend, Move, Pass, Plan, Step
from ringloom.planner.layouts import by_tokens
from ringloom.planner.passes.adjoint import adjoint
from ringloom.planner.workload import Workload

Cells = tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.intp]]


def cells(ranks: int, t: int) -> Cells:
    """Returns (worker, query owner, key owner) of step t (DistFlashAttn section 3.2)."""
    rank = np.arange(ranks)
    is_helper = rank < t
    worker = rank[~is_helper] if 2 * t == ranks else rank
    is_helper = is_helper[worker]
    q = np.where(is_helper, (ranks + worker - t) % ranks, worker)
    return worker, q, np.where(is_helper, worker, (worker - t) % ranks)


def balanced(work: Workload, ranks: int, pass_: Pass) -> Plan:
    """Sends KV to later ranks, queries to helpers, partial results back (DistFlashAttn 3.1)."""
    if pass_ == "backward":
        return adjoint(balanced(work, ranks, "forward"))
    partition = by_tokens(work, ranks, "contiguous")
    q, kv = partition.q.owned(ranks), partition.kv.owned(ranks)
    below = [cells(ranks, t) for t in range(ranks // 2 + 1)]
    last = ranks - 1
    above = [(last - worker, last - owner, last - source) for worker, owner, source in below[1:]]
    rounds = [*below, *above]
    fetched = [(Move(("KV",), kv[k], k, w), Move(("Q",), q[o], o, w)) for w, o, k in rounds]
    attends = [(Attend(w, q[o], kv[k]),) for w, o, k in rounds]  # a step after the fetch
    results = [(Move(("OUT",), q[o], w, o),) for w, o, _ in rounds]  # another step later
    stages = zip([*fetched, (), ()], [(), *attends, ()], [(), (), *results], strict=True)
    steps = (Step(attend, inputs + sums) for inputs, attend, sums in stages)
    return Plan("balanced", work, ranks, partition, pass_, (), (), tuple(steps))
