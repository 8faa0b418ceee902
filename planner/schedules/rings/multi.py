"""Multi-ring: keys and values cut into pieces, each on its own ring through all ranks.

step t    rank r attends q[r] x piece j of the rank t places before r on ring j, for every j
          each piece travels on along its ring; dkv follows one step behind and is back after P hops

   P = 5   ring 0: 0 -> 1 -> 3 -> 2 -> 4 -> 0      ring 1: 1 -> 2 -> 0 -> 3 -> 4 -> 1
           and both the other way: no two rings have a link in common

forward sends   KV 2*f*(P-1)
backward sends  KV 2*f*(P-1), DKV 2*f*P*(P>1)

The ring's bytes, over P - 1 links of each rank at once, P - 2 where P is even (Walecki's
decomposition). Neighbours in sequence are far apart on most rings: windows save no rounds here.
TASP (Wang et al. 2025). Its programs are tables: rings are lists of ranks.
"""

from itertools import chain

import numpy as np

from ringloom.planner.ir import Attend, Move, Pass, Plan, Step
from ringloom.planner.layouts import Layout, sides, split, whole_heads
from ringloom.planner.partitions import Ints, Partition, check_places
from ringloom.planner.workload import Workload


def multi_ring(work: Workload, ranks: int, pass_: Pass, *, layout: Layout = "zigzag") -> Plan:
    """KV pieces go around as many edge-disjoint rings as there are (TASP)."""
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
    """Rings of which no two have a link in common; one ring where there are fewer than 3 ranks."""
    half, last = (ranks - 1) // 2, ranks - 1
    path = [0, *chain(*((k, -k) for k in range(1, half + 1)))][: 2 * half]
    turned = [[(x + turn) % (2 * half) for x in path] for turn in range(half)]
    if ranks % 2 == 0:  # one rank lies in the middle of every path
        turned = [[*p[:half], last, *p[half:]] for p in turned]
    cycles = [np.array([*p, last - 1 + ranks % 2], np.int32) for p in turned]  # one closes them
    return [*cycles, *(cycle[::-1] for cycle in cycles)] or [np.arange(ranks, dtype=np.int32)]
