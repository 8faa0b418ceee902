"""Values: the blocks of a name on each rank, by piece and head slice: [ranks, p, h].

Pieces are the distinct sets of positions on a rank, in block order; head slices count from the
lowest on the rank. -1 means no block.
"""

import numpy as np
from numpy.typing import NDArray

from ringloom.planner.columns import flat, pad_columns
from ringloom.planner.ir import Move, Plan
from ringloom.planner.loops.form import Ints, Part
from ringloom.planner.partitions import Side

FAR = 1 << 30
Bools = NDArray[np.bool_]
Copies = tuple[Ints, Ints]  # rank [n], blocks [n, w]


def pack(ranks: int, side: Side, rank: Ints, blocks: Ints) -> Ints:
    """Returns the table of values from each rank [n] and its blocks [n, w] in any order."""
    rank, block = flat(rank, blocks)
    if not len(block):
        return np.full((ranks, 1, 1), -1, np.int32)
    code = rank * len(side.chunks) + side.chunk[block]
    # With `return_index` numpy uses a stable sort, which is fast for nearly sorted codes.
    different, _, number = np.unique(code, return_index=True, return_inverse=True)
    piece = number - np.searchsorted(different, np.arange(ranks) * len(side.chunks))[rank]
    head = np.zeros_like(block)
    if len(side.slices) > 1:
        low = np.full(ranks, FAR)
        np.minimum.at(low, rank, side.slice[block])
        head = side.slice[block] - low[rank]
    table = np.full((ranks, int(piece.max()) + 1, int(head.max()) + 1), -1, np.int32)
    table[rank, piece, head] = block
    return table


def held_blocks(plan: Plan, side: str) -> Ints | None:
    """Returns each rank's initial copies, and its own blocks attended together with them."""
    blocks = plan.partition.side(side)
    here = np.zeros((plan.ranks, len(blocks)), np.bool_)
    for node in plan.start:
        if node.side == side:
            block, rank = node.flat()
            here[rank, block] = True
    if not here.any():
        return None
    kept = np.zeros_like(here)
    for _, attend in plan.attends():
        read = attend.q if side == "q" else attend.kv
        present = (read >= 0) & here[attend.rank[:, None], read]
        rows = present.any(axis=1) & ~present.all(axis=1)
        rank, block = flat(attend.rank[rows], read[rows])
        own = blocks.owners[block] == rank
        kept[rank[own], block[own]] = True
    rank, block = np.nonzero(here | kept)
    return pack(plan.ranks, blocks, rank, block[:, None])


def slice_part(table: Ints, part: Part, t: int, where: Ints) -> Ints:
    """Selects a part's pieces and heads from each row of a table, by rank: [n, p x h]."""
    for axis, ends in ((1, part.pieces), (2, part.heads)):
        if ends is not None and len(where):
            low, high = (e.at(t, where) for e in ends)
            span = slice(max(0, low.min()), max(0, high.max() + 1))
            table = table[:, span] if axis == 1 else table[:, :, span]
            i = span.start + np.arange(table.shape[axis])
            on: Bools = (i >= low[:, None]) & (i <= high[:, None])
            if not on.all():
                table = np.where(on[:, :, None] if axis == 1 else on[:, None, :], table, -1)
    return table.reshape(len(table), table.shape[1] * table.shape[2])


def codes(move: Move, ranks: int, blocks: int) -> Ints:
    """Returns one number per moved (src, dst, block), ascending."""
    pair, block = flat(move.src.astype(np.int64) * ranks + move.dst, move.blocks)
    return np.sort(pair * blocks + block)


def same(a: Ints, b: Ints) -> bool:
    """Returns True if all rows have the same blocks."""
    if np.array_equal(a, b):
        return True
    width = max(a.shape[1], b.shape[1])
    left, right = (np.sort(pad_columns(x, width), axis=1) for x in (a, b))
    return np.array_equal(left, right)
