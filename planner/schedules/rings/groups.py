"""Groups: long documents have rings of their own; short documents share single ranks.

documents   ________A________  ___B___  C D E F
ranks       0 -> 1 -> 2 -> 0   3 -> 4 -> 3    5       rings of any size, in proportion to the work
step t      rank r attends q[r] x kv of the rank t places before r on its ring; dkv one step behind

forward sends   KV 2*f*(P-1)
backward sends  KV 2*f*(P-1), DKV 2*f*P*(P>1)      of a document on n ranks n instead of P

FlexSP (Wang et al. 2025), ByteScale (Ge et al. 2025). This schedule reads the mask: its documents
are the independent parts of the mask. A mask with a single part gives the ring. Rings of several
sizes are lists of ranks, so programs are tables.
"""

import numpy as np

from ringloom.planner.ir import Attend, Move, Pass, Plan, Step
from ringloom.planner.layouts import Chunks, Layout, chunks_of, independent_parts, whole_heads
from ringloom.planner.partitions import Ints, Partition, shift_ranges
from ringloom.planner.schedules.shares import divide_ranks
from ringloom.planner.workload import Workload


def groups(work: Workload, ranks: int, pass_: Pass, *, layout: Layout = "zigzag") -> Plan:
    """Runs a ring within each group of ranks; group sizes are proportional to the work."""
    spans, pieces = independent_parts(work), (Chunks(), Chunks())
    rings = divide_ranks([len(q) * len(kv) for q, kv in spans], ranks)
    first_rank, ring_size = np.arange(ranks), np.ones(ranks, np.int32)
    for span, (start, count) in zip(spans, rings, strict=True):
        for side, tokens in zip(pieces, span, strict=True):
            chunks = chunks_of(layout, len(tokens), count)
            shifted = ((shift_ranges(p, tokens.start), owner) for p, owner in chunks if any(p))
            side += [(positions, start + owner) for positions, owner in shifted]
        if count > 1:
            first_rank[start : start + count], ring_size[start : start + count] = start, count
    q, kv = (sorted(side, key=lambda piece: piece[0][0].start) for side in pieces)
    partition = Partition(whole_heads(q, work.heads), whole_heads(kv, work.kv_heads))
    rank, owned, steps = np.arange(ranks), partition.kv.owned(ranks), list[Step]()
    next_rank = first_rank + (rank - first_rank + 1) % ring_size

    def visitors(t: int, limit: Ints) -> Ints:
        """Returns the blocks t places before each rank on its ring; -1 where t >= limit."""
        source = first_rank + (rank - first_rank - t) % ring_size
        return np.where((t < limit)[:, None], owned[source], -1)

    for t in range(ring_size.max() + (pass_ == "backward")):
        moves = [Move(("KV",), visitors(t, ring_size - 1), rank, next_rank)]
        if pass_ == "backward" and t:
            moves.append(Move(("DKV",), visitors(t - 1, ring_size), rank, next_rank))
        active = ring_size > t
        queries, keys = partition.q.owned(ranks)[active], visitors(t, ring_size)[active]
        attend = Attend(rank[active], queries, keys)
        steps.append(Step((attend,), tuple(moves)))
    return Plan("groups", work, ranks, partition, pass_, (), (), tuple(steps))
