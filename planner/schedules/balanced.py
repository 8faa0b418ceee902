"""DistFlashAttn: ranks whose own row has run out help the ones with rows left.

    step t   rank p >= t   kv[p - t] -> p          which attends q[p] x kv[p - t]
             rank p <  t   q[P + p - t] -> p       which attends it to its own kv[p];
                           out[P + p - t] -> home  in the next step: a partial result
    t = 0..floor(P/2): half of the ring's rounds; for even P nobody helps in the last one.

That covers the tiles on and below the diagonal; the tiles above it (dead under a causal mask, and
then trimmed away) get the mirror image: rank p plays P - 1 - p.

With h = floor((P-1)/2), of all tiles:
forward sends   KV 2*f*(P-1-h*(h+1)/P), Q h*(h+1)/P, OUT h*(h+1)/P
backward sends  KV 2*f*(P-1-h*(h+1)/P), DKV 2*f*(P-1-h*(h+1)/P), Q h*(h+1)/P, DOUT h*(h+1)/P,
                DQ h*(h+1)/P
"""

import numpy as np
from numpy.typing import NDArray

from planner.ir import Attend, Move, Pass, Plan, Step
from planner.layouts import by_tokens
from planner.partitions import Ints
from planner.passes.adjoint import adjoint
from planner.workload import Workload

Cells = tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.intp]]


def cells(ranks: int, t: int) -> Cells:
    """(worker, owner of the queries, owner of the keys) of step t (DistFlashAttn section 3.2)."""
    rank = np.arange(ranks)
    helps = rank < t
    worker = rank[~helps] if 2 * t == ranks else rank
    helps = helps[worker]
    q = np.where(helps, (ranks + worker - t) % ranks, worker)
    return worker, q, np.where(helps, worker, (worker - t) % ranks)


def balanced(work: Workload, ranks: int, pass_: Pass) -> Plan:
    """KV goes to the ranks below, queries to helpers, partial results home (DistFlashAttn 3.1)."""
    if pass_ == "backward":
        return adjoint(balanced(work, ranks, "forward"))
    partition = by_tokens(work, ranks, "contiguous")
    q, kv = partition.q.owned(ranks), partition.kv.owned(ranks)
    below = [cells(ranks, t) for t in range(ranks // 2 + 1)]
    last = ranks - 1
    above = [(last - worker, last - owner, last - source) for worker, owner, source in below[1:]]
    steps = _steps([*below, *above], q, kv)
    return Plan("balanced", work, ranks, partition, pass_, (), (), steps)


def _steps(rounds: list[Cells], q: Ints, kv: Ints) -> tuple[Step, ...]:
    """Attend in step t what step t - 1 fetched; send results home in step t + 1."""
    steps = []
    for t in range(-1, len(rounds) + 1):
        attends, moves = list[Attend](), list[Move]()
        if t + 1 < len(rounds):
            worker, owner, source = rounds[t + 1]
            moves.append(Move(("KV",), kv[source], source, worker))
            moves.append(Move(("Q",), q[owner], owner, worker))
        if t >= 1:
            worker, owner, _ = rounds[t - 1]
            moves.append(Move(("OUT",), q[owner], worker, owner))
        if 0 <= t < len(rounds):
            worker, owner, source = rounds[t]
            attends.append(Attend(worker, q[owner], kv[source]))
        steps.append(Step(tuple(attends), tuple(moves)))
    return tuple(filter(None, steps))
