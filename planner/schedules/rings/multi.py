"""Multi-ring: pieces of keys and values travel on different rings through all ranks.

step t    rank r attends q[r] x piece j of the rank t places before r on ring j, for every j
          piece j -> the next rank on ring j; dkv follows one step behind and is back after P hops

   P = 5   ring 0: 0 -> 1 -> 3 -> 2 -> 4 -> 0      ring 1: 1 -> 2 -> 0 -> 3 -> 4 -> 1
           and both reversed: no two rings share a link

forward sends   KV 2*f*(P-1)
backward sends  KV 2*f*(P-1), DKV 2*f*P*(P>1)

Sends the bytes of the ring over P - 1 links of each rank in parallel, P - 2 if P is even (Walecki's
decomposition). Neighbours in the sequence are far apart on most rings, so windows save no rounds.
TASP (Wang et al. 2025). Rings are lists of ranks, so programs are tables.
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
    pieces = [(piece, owner) for chunk, owner in keys for piece in split(chunk, len(rings))]
    q, kv = whole_heads(queries, work.heads), whole_heads(pieces, work.kv_heads)
    owned = kv.owned(ranks).reshape(ranks, -1, len(rings))
    next_ranks = [ring[(np.argsort(ring) + 1) % ranks] for ring in rings]

    def visitors(t: int) -> list[Ints]:
        return [owned[ring[(np.argsort(ring) - t) % ranks], :, j] for j, ring in enumerate(rings)]

    src, dst = np.tile(rank, len(rings)), np.concatenate(next_ranks)
    for t in range(ranks + (pass_ == "backward")):
        attends = (Attend(rank, q.owned(ranks), np.hstack(visitors(t))),) if t < ranks else ()
        moves = [Move(("KV",), np.concatenate(visitors(t)), src, dst)] if t < ranks - 1 else []
        if pass_ == "backward" and t:
            moves.append(Move(("DKV",), np.concatenate(visitors(t - 1)), src, dst))
        steps.append(Step(attends, tuple(moves)))
    return Plan("multi-ring", work, ranks, Partition(q, kv), pass_, (), (), tuple(steps))


def disjoint_rings(ranks: int) -> list[Ints]:
    """Returns rings that share no link; below 3 ranks, a single ring."""
    half, last = (ranks - 1) // 2, ranks - 1
    path = [0, *chain(*((k, -k) for k in range(1, half + 1)))][: 2 * half]
    paths = [[(x + turn) % (2 * half) for x in path] for turn in range(half)]
    if ranks % 2 == 0:  # the last rank is in the middle of every path
        paths = [[*p[:half], last, *p[half:]] for p in paths]
    cycles = [np.array([*p, last - 1 + ranks % 2], np.int32) for p in paths]  # the same last rank
    return [*cycles, *(cycle[::-1] for cycle in cycles)] or [np.arange(ranks, dtype=np.int32)]
