"""cut_at_edges(plan)   cuts blocks where boxes of the mask begin or end.

Between edges, a tile is dead, full, or cut by a band, so a comparison of blocks finds the rows that
see the same keys. Moves, initial copies, attends and buffers then refer to the parts of blocks.
"""

from bisect import bisect_right
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise

import numpy as np

from ringloom.planner.columns import group_entries, ragged_index
from ringloom.planner.ir import TENSORS, Attend, Index, InitialCopy, Move, Plan, Step
from ringloom.planner.masks.mask import SideName
from ringloom.planner.partitions import LARGEST_TABLE, Block, Ints, Partition, Ranges, Side
from ringloom.planner.plans import one_plan
from ringloom.planner.workload import Workload

MOST_EDGES = 2000  # of a mask, on the two sides together
MOST_TILES = 1 << 20  # of parts; the table of tiles takes a third of a second
Parts = tuple[Index, Index]  # the first part of each block, and the number of parts


def cut_at_edges(plan: Plan) -> Plan:
    """Cuts blocks of consecutive positions where boxes of the mask begin or end.

    Move([a], r, s)  -->  Move([a0, a1], r, s)      if the edge of a document is inside a

    Rectangles may then have dead blocks, which `trim` drops. Does not cut strided blocks. Returns
    the plan unchanged if the result would be too large: more edges than `MOST_EDGES`, more tiles
    than `MOST_TILES`, or more blocks than a plan may have.
    """
    one_plan(plan, "cut_at_edges")
    queries, keys = edges(plan.workload)
    if len(queries) + len(keys) > MOST_EDGES:
        return plan
    q, of_q = _cut_side(plan.partition.q, queries)
    kv, of_kv = _cut_side(plan.partition.kv, keys)
    if (
        len(q.chunks) * len(kv.chunks) > MOST_TILES
        or plan.ranks * max(len(q), len(kv)) > LARGEST_TABLE
    ):
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
    """Returns True if rows on both sides of an edge see keys between the same two edges.

    Also returns True if rows between two edges see keys on both sides of an edge. Returns False for
    documents, and for a mask with more edges than `MOST_EDGES`.
    """
    rows, columns = edges(work)
    if len(rows) + len(columns) > MOST_EDGES:
        return False
    i0, i1, j0, j1, *_ = work.mask.region().pieces.T
    queries = np.searchsorted(rows, np.stack([i0, i1]) - work.offset)
    keys = np.searchsorted(columns, np.stack([j0, j1]))
    is_seen = np.zeros((max(len(rows), 1) - 1, max(len(columns), 1) - 1), np.bool_)
    for a, b, c, d in np.concatenate([queries, keys]).T.tolist():
        is_seen[a:b, c:d] = True
    return any(int(is_seen.sum(axis=axis).max(initial=0)) > 1 for axis in (0, 1))


def _cut_side(side: Side, edges: list[int]) -> tuple[Side, Parts]:
    """Cuts the blocks of a side; the parts of a block have consecutive numbers."""
    parts_of_chunk = [_cut_chunk(chunk, edges) for chunk in side.chunks]
    blocks = [
        Block(part, block.heads, block.home)
        for block, chunk in zip(side.blocks, side.chunk.tolist(), strict=True)
        for part in parts_of_chunk[chunk]
    ]
    count = np.array([len(parts) for parts in parts_of_chunk], np.intp)[side.chunk]
    return Side(tuple(blocks)), (np.cumsum(count) - count, count)


def _cut_chunk(chunk: Ranges, edges: list[int]) -> list[Ranges]:
    """Cuts ranges of step 1 at edges, into parts in the order of positions."""
    if any(part.step != 1 and len(part) > 1 for part in chunk):
        return [chunk]
    intervals = defaultdict[int, list[range]](list)
    for part in (range(part.start, part.start + len(part)) for part in chunk):
        first, last = bisect_right(edges, part.start), bisect_right(edges, part.stop - 1)
        for n, (a, b) in enumerate(pairwise((part.start, *edges[first:last], part.stop)), first):
            intervals[n].append(range(a, b))
    return [tuple(intervals[n]) for n in sorted(intervals)] or [chunk]


def _parts(table: Ints, parts: Parts) -> Ints:
    """Replaces blocks by their parts: [n, w] -> [n, most]."""
    first, count = parts
    row, column = np.nonzero(table >= 0)
    blocks = table[row, column]
    n, index = ragged_index(count[blocks])
    return np.append(first[blocks][n] + index, -1)[group_entries(row[n], len(table))]


def _slots(slots: int, parts: Parts) -> int:
    """Returns the most slots that the parts of `slots` blocks take."""
    return int(np.sort(parts[1])[::-1][:slots].sum())
