"""Layouts by documents: the independent parts of any mask.

per-document     A B B A   A A B B B B A A   A B B A     zigzag within each document
whole-document   A A A A   B B B B B B B B   A A A A     each document on a single rank
"""

from itertools import pairwise

import numpy as np

from ringloom.planner.layouts.by_place import zigzag
from ringloom.planner.layouts.by_work import count_all_pairs
from ringloom.planner.layouts.dispatch import assign_least_loaded
from ringloom.planner.layouts.pieces import Chunks, gather_ranges
from ringloom.planner.masks.regions import FAR, Region
from ringloom.planner.workload import Workload


def independent_parts(work: Workload) -> list[tuple[range, range]]:
    """Returns the queries and keys of each independent part of the mask, in order."""
    box = [[work.offset, work.offset + work.seq, 0, work.kv_seq, -FAR, FAR]]
    pieces = Region.of(box).intersect(work.mask.region()).pieces
    top, bottom, left, right = pieces[np.argsort(pieces[:, 0], kind="stable"), :4].T
    left = np.minimum.accumulate(left[::-1])[::-1]  # of a piece and all pieces below
    rows = np.maximum.accumulate(bottom)[:-1] <= top[1:]
    begins = 1 + np.flatnonzero(rows & (np.maximum.accumulate(right)[:-1] <= left[1:]))
    queries = pairwise([0, *(top[begins] - work.offset).tolist(), work.seq])
    keys = pairwise([0, *left[begins].tolist(), work.kv_seq])
    return [(range(*q), range(*kv)) for q, kv in zip(queries, keys, strict=True)]


def per_document(work: Workload, ranks: int, grain: int) -> tuple[Chunks, Chunks]:
    """Cuts each document in zigzag order (WLB-LLM); leftover tokens go to the ranks in turn.

    The tokens of a rank ascend: its front piece of each document, then its back piece.
    """
    spans = independent_parts(work)
    if len(spans) == 1:
        return zigzag(work.seq, ranks), zigzag(work.kv_seq, ranks)
    q, kv = zip(*spans, strict=True)
    return _head_tail(q, ranks), _head_tail(kv, ranks)


def _head_tail(documents: tuple[range, ...], ranks: int) -> Chunks:
    pieces, next_rank = list[range](), 0
    for document in documents:
        length, leftover = divmod(len(document), 2 * ranks)
        extra = np.zeros(2 * ranks, int)
        for n in range(leftover):  # a second token extends the back piece of a rank
            rank = (next_rank + n) % ranks
            extra[rank if n < ranks else -1 - rank] = 1
        next_rank = (next_rank + leftover) % ranks
        ends = document.start + np.cumsum([0, *(length + extra)])
        pieces += [range(a, b) for a, b in pairwise(ends.tolist())]
    owners = [*range(ranks), *reversed(range(ranks))] * len(documents)
    return gather_ranges(pieces, owners, ranks)


def whole_document(work: Workload, ranks: int, grain: int) -> tuple[Chunks, Chunks]:
    """Assigns each document to the least loaded rank, largest document first."""
    q, kv = zip(*independent_parts(work), strict=True)
    owners = assign_least_loaded(count_all_pairs(work, "q", q), ranks, len(q)).tolist()
    return gather_ranges(q, owners, ranks), gather_ranges(kv, owners, ranks)
