"""Multi-ring: cuts keys and values into pieces, each on its own ring through all ranks.

step t    rank r attends q[r] x piece j of the rank t places before r on ring j, for every j
          each piece travels on along its ring; dkv follows one step behind and is back after P hops

   P = 5   ring 0: 0 -> 1 -> 3 -> 2 -> 4 -> 0      ring 1: 1 -> 2 -> 0 -> 3 -> 4 -> 1
           and both reversed: no two rings share a link

forward sends   KV 2*f*(P-1)
backward sends  KV 2*f*(P-1), DKV 2*f*P*(P>1)

As many bytes as the ring, over P - 1 links of each rank at once, P - 2 if P is even (Walecki's
decomposition). Neighbours in the sequence are far apart on most rings, so windows save no rounds.
TASP (Wang et al. 2025). Rings are lists of ranks, so its programs are tables.
"""

from itertools import chain

import numpy as np

from ringloom.planner.ir import Attend, Move, Pass, Plan, Step
from ringloom.planner.layouts import Layout, sides, split, whole_heads
from ringloom.planner.partitions import Ints, Partition, check_places
from ringloom.planner.workload import Workload


def multi_ring(work: Workload, ranks: int, pass_: Pass, *, layout: Layout = "zigzag") -> Plan:
    """Rotates KV pieces on all edge-disjoint rings (TASP)."""
    check_places(ranks, ranks * max(1, (ranks - 1) // 2 * 2))
    rings, rank, steps = disjoint_rings(ranks), np.arange(ranks), list[Step]()
    queries, keys = sides(work, ranks, layout)
    pieces = [(part, owner) for whole, owner in keys for part in split(whole, len(rings))]
    q, kv = whole_heads(queries, work.heads), whole_heads(pieces, work.kv_heads)
    owned = kv.owned(ranks).reshape(ranks, -1, len(rings))
    onward = [ring[(np.argsort(ring) + 1) % ranks] for ring in rings]

    def visitors(t: int) -> list[Ints]:
        return [owned[ring[(np.argsort(ring) - t) % ranks], :, j] for j, ring in enumerate(rings)]

    src, dst = np.tile(rank, len(rings)), np.concatenate(onward)
    for t in range(ranks + (pass_ == "backward")):
        attends = (Attend(rank, q.owned(ranks), np.hstack(visitors(t))),) if t < ranks else ()
        moves = [Move(("KV",), np.concatenate(visitors(t)), src, dst)] if t < ranks - 1 else []
        if pass_ == "backward" and t:
            moves.append(Move(("DKV",), np.concatenate(visitors(t - 1)), src, dst))
        steps.append(Step(attends, tuple(moves)))
    part = Partition(q, kv)
    return Plan("multi-ring", work, ranks, part, pass_, (), (), tuple(steps))


def disjoint_rings(ranks: int) -> list[Ints]:
    """Returns rings that share no link; a single ring for fewer than 3 ranks."""
    half, last = (ranks - 1) // 2, ranks - 1
    path = [0, *chain(*((k, -k) for k in range(1, half + 1)))][: 2 * half]
    turned = [[(x + turn) % (2 * half) for x in path] for turn in range(half)]
    if ranks % 2 == 0:  # one rank lies in the middle of every path
        turned = [[*p[:half], last, *p[half:]] for p in turned]
    cycles = [np.array([*p, last - 1 + ranks % 2], np.int32) for p in turned]  # one rank closes all
    return [*cycles, *(cycle[::-1] for cycle in cycles)] or [np.arange(ranks, dtype=np.int32)]
