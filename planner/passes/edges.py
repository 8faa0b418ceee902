"""cut_at_edges(plan)   cuts blocks where boxes of the mask begin or end.

Between edges a tile is dead, full, or cut by a band, so rows that see the same keys can be found
block by block. Moves, initial copies, attends and buffers then refer to the parts of blocks.
"""

from bisect import bisect_right
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise

import numpy as np

from ringloom.planner.columns import by_group, ragged
from ringloom.planner.ir import TENSORS, Attend, Index, InitialCopy, Move, Plan, Step
from ringloom.planner.masks.mask import SideName
from ringloom.planner.partitions import LARGEST, Block, Ints, Partition, Ranges, Side
from ringloom.planner.plans import one_plan
from ringloom.planner.workload import Workload

EDGES = 2000  # the most edges of a mask, on both sides together
TILES = 1 << 20  # the most tiles of parts: their table takes a third of a second
Parts = tuple[Index, Index]  # for each block: its first part, and its number of parts


def cut_at_edges(plan: Plan) -> Plan:
    """Cut blocks of consecutive positions where boxes of the mask begin or end.

    Move([a], r, s)  -->  Move([a0, a1], r, s)      the edge of a document lies within a

    Rectangles may then have dead blocks, which `trim` drops. Strided blocks stay whole. The plan is
    returned unchanged if it would be too large: more edges than `EDGES`, more tiles than `TILES`,
    or more blocks than a plan may have.
    """
    one_plan(plan, "cut_at_edges")
    queries, keys = edges(plan.workload)
    if len(queries) + len(keys) > EDGES:
        return plan
    q, of_q = _cut_side(plan.partition.q, queries)
    kv, of_kv = _cut_side(plan.partition.kv, keys)
    if len(q.chunks) * len(kv.chunks) > TILES or plan.ranks * max(len(q), len(kv)) > LARGEST:
        return plan
    if (len(q), len(kv)) == (len(plan.partition.q), len(plan.partition.kv)):
        return plan
    parts: dict[SideName, Parts] = {"q": of_q, "kv": of_kv}
    steps = (
        Step(
            tuple(Attend(a.rank, _parts(a.q, of_q), _parts(a.kv, of_kv)) for a in step.attends),
            tuple(
                Move(m.tensors, _parts(m.blocks, parts[m.side]), m.src, m.dst) for m in step.moves
            ),
        )
        for step in plan.steps
    )
    start = (InitialCopy(h.tensors, _parts(h.blocks, parts[h.side]), h.rank) for h in plan.start)
    return replace(
        plan,
        partition=Partition(q, kv),
        start=tuple(start),
        buffers=tuple((t, _slots(slots, parts[TENSORS[t].side])) for t, slots in plan.buffers),
        steps=tuple(steps),
    )


def edges(work: Workload) -> tuple[list[int], list[int]]:
    """Returns the positions of queries, and of keys, at which boxes of the mask begin or end."""
    i0, i1, j0, j1, _, _ = work.mask.region().pieces.T
    queries = np.unique(np.clip(np.concatenate([i0, i1]) - work.offset, 0, work.seq))
    keys = np.unique(np.clip(np.concatenate([j0, j1]), 0, work.kv_seq))
    return queries.tolist(), keys.tolist()


def shares_keys(work: Workload) -> bool:
    """Returns True if keys between two edges of the mask are seen by rows on both sides of an edge.

    Also if rows between two edges see keys on both sides of an edge. Documents do neither. False
    for a mask with more edges than `EDGES`.
    """
    rows, columns = edges(work)
    if len(rows) + len(columns) > EDGES:
        return False
    i0, i1, j0, j1, *_ = work.mask.region().pieces.T
    queries = np.searchsorted(rows, np.stack([i0, i1]) - work.offset)
    keys = np.searchsorted(columns, np.stack([j0, j1]))
    seen = np.zeros((max(len(rows), 1) - 1, max(len(columns), 1) - 1), np.bool_)
    for a, b, c, d in np.concatenate([queries, keys]).T.tolist():
        seen[a:b, c:d] = True
    return any(int(seen.sum(axis=axis).max(initial=0)) > 1 for axis in (0, 1))


def _cut_side(side: Side, edges: list[int]) -> tuple[Side, Parts]:
    """Cuts the blocks of a side; the parts of a block are consecutive."""
    cut = [_cut_chunk(chunk, edges) for chunk in side.chunks]
    blocks = [
        Block(part, block.heads, block.home)
        for block, chunk in zip(side.blocks, side.chunk.tolist(), strict=True)
        for part in cut[chunk]
    ]
    count = np.array([len(parts) for parts in cut], np.intp)[side.chunk]
    return Side(tuple(blocks)), (np.cumsum(count) - count, count)


def _cut_chunk(chunk: Ranges, edges: list[int]) -> list[Ranges]:
    """Cuts ranges of step 1 at edges, into parts in the order of positions."""
    if any(part.step != 1 and len(part) > 1 for part in chunk):
        return [chunk]
    between = defaultdict[int, list[range]](list)
    for part in (range(part.start, part.start + len(part)) for part in chunk):
        first, last = bisect_right(edges, part.start), bisect_right(edges, part.stop - 1)
        for n, (a, b) in enumerate(pairwise((part.start, *edges[first:last], part.stop)), first):
            between[n].append(range(a, b))
    return [tuple(between[n]) for n in sorted(between)] or [chunk]


def _parts(table: Ints, parts: Parts) -> Ints:
    """Replaces blocks by their parts: [n, w] -> [n, widest]."""
    first, count = parts
    row, column = np.nonzero(table >= 0)
    blocks = table[row, column]
    which, place = ragged(count[blocks])
    return np.append(first[blocks][which] + place, -1)[by_group(row[which], len(table))]


def _slots(slots: int, parts: Parts) -> int:
    """Returns the most slots that the parts of `slots` blocks take."""
    return int(np.sort(parts[1])[::-1][:slots].sum())
