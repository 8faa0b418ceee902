"""Groups: each long document on a ring of its own, short ones together on single ranks.

documents   ________A________  ___B___  C D E F
ranks       0 -> 1 -> 2 -> 0   3 -> 4 -> 3    5       rings of any size, in proportion to the work
step t      rank r attends q[r] x the kv t places before it on its ring; dkv one step behind

forward sends   KV 2*f*(P-1)
backward sends  KV 2*f*(P-1), DKV 2*f*P*(P>1)      of a document on n ranks n instead of P

FlexSP (Wang et al. 2025), ByteScale (Ge et al. 2025). This schedule reads the mask: its documents
are the independent parts of the mask; with a single part it is the ring. Rings of several sizes
are lists of ranks, so its programs are tables.
"""

import numpy as np

from ringloom.planner.ir import Attend, Move, Pass, Plan, Step
from ringloom.planner.layouts import Chunks, Layout, chunks_of, parts, whole_heads
from ringloom.planner.partitions import Ints, Partition, shift
from ringloom.planner.schedules.shares import divide_ranks
from ringloom.planner.workload import Workload


def groups(work: Workload, ranks: int, pass_: Pass, *, layout: Layout = "zigzag") -> Plan:
    """Runs a ring within each group of ranks, sized by its documents' share of the work."""
    spans, pieces = parts(work), (Chunks(), Chunks())
    rings = divide_ranks([len(q) * len(kv) for q, kv in spans], ranks)
    first, size = np.arange(ranks), np.ones(ranks, np.int32)
    for span, (start, many) in zip(spans, rings, strict=True):
        for side, tokens in zip(pieces, span, strict=True):
            chunks = chunks_of(layout, len(tokens), many)
            side += [(shift(p, tokens.start), start + owner) for p, owner in chunks if any(p)]
        if many > 1:
            first[start : start + many], size[start : start + many] = start, many
    q, kv = (sorted(side, key=lambda piece: piece[0][0].start) for side in pieces)
    part = Partition(whole_heads(q, work.heads), whole_heads(kv, work.kv_heads))
    rank, own, steps = np.arange(ranks), part.kv.owned(ranks), list[Step]()
    onward = first + (rank - first + 1) % size

    def visitors(t: int, most: Ints) -> Ints:
        """Returns the blocks t places before each rank on its ring; -1 where t >= most."""
        return np.where((t < most)[:, None], own[first + (rank - first - t) % size], -1)

    for t in range(size.max() + (pass_ == "backward")):
        on, moves = size > t, [Move(("KV",), visitors(t, size - 1), rank, onward)]
        if pass_ == "backward" and t:
            moves.append(Move(("DKV",), visitors(t - 1, size), rank, onward))
        attend = Attend(rank[on], part.q.owned(ranks)[on], visitors(t, size)[on])
        steps.append(Step((attend,), tuple(moves)))
    return Plan("groups", work, ranks, part, pass_, (), (), tuple(steps))
