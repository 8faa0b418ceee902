"""Values: the blocks of a name on each rank, by piece and head slice: [ranks, p, h].

Pieces are the distinct sets of positions on a rank, in block order. Head slices count from the
lowest slice on the rank. -1 means no block.
"""

import numpy as np
from numpy.typing import NDArray

from ringloom.planner.columns import flatten_blocks, pad_columns
from ringloom.planner.ir import Move, Plan
from ringloom.planner.loops.form import Ints, Part
from ringloom.planner.partitions import Side

FAR = 1 << 30
Bools = NDArray[np.bool_]
Copies = tuple[Ints, Ints]  # rank [n], blocks [n, w]


def pack(ranks: int, side: Side, rank: Ints, blocks: Ints) -> Ints:
    """Returns the table of a value from ranks [n] and their blocks [n, w], in any order."""
    rank, block = flatten_blocks(rank, blocks)
    if not len(block):
        return np.full((ranks, 1, 1), -1, np.int32)
    code = rank * len(side.chunks) + side.chunk[block]
    # With `return_index` numpy uses a stable sort, which is fast for nearly sorted codes.
    distinct, _, number = np.unique(code, return_index=True, return_inverse=True)
    piece = number - np.searchsorted(distinct, np.arange(ranks) * len(side.chunks))[rank]
    head = np.zeros_like(block)
    if len(side.slices) > 1:
        low = np.full(ranks, FAR)
        np.minimum.at(low, rank, side.slice[block])
        head = side.slice[block] - low[rank]
    table = np.full((ranks, int(piece.max()) + 1, int(head.max()) + 1), -1, np.int32)
    table[rank, piece, head] = block
    return table


def held_blocks(plan: Plan, side: str) -> Ints | None:
    """Returns the initial copies of each rank, and the own blocks that it attends with them."""
    blocks = plan.partition.side(side)
    is_held = np.zeros((plan.ranks, len(blocks)), np.bool_)
    for node in plan.start:
        if node.side == side:
            block, rank = node.flat()
            is_held[rank, block] = True
    if not is_held.any():
        return None
    is_kept = np.zeros_like(is_held)
    for _, attend in plan.attends():
        blocks_read = attend.q if side == "q" else attend.kv
        is_present = (blocks_read >= 0) & is_held[attend.rank[:, None], blocks_read]
        rows = is_present.any(axis=1) & ~is_present.all(axis=1)
        rank, block = flatten_blocks(attend.rank[rows], blocks_read[rows])
        is_owned = blocks.owners[block] == rank
        is_kept[rank[is_owned], block[is_owned]] = True
    rank, block = np.nonzero(is_held | is_kept)
    return pack(plan.ranks, blocks, rank, block[:, None])


def slice_part(table: Ints, part: Part, t: int, coordinates: Ints) -> Ints:
    """Selects the pieces and heads of a part from each row of a table: [n, p x h]."""
    for axis, ends in ((1, part.pieces), (2, part.heads)):
        if ends is not None and len(coordinates):
            low, high = (e.at(t, coordinates) for e in ends)
            span = slice(max(0, low.min()), max(0, high.max() + 1))
            table = table[:, span] if axis == 1 else table[:, :, span]
            i = span.start + np.arange(table.shape[axis])
            selected: Bools = (i >= low[:, None]) & (i <= high[:, None])
            if not selected.all():
                table = np.where(
                    selected[:, :, None] if axis == 1 else selected[:, None, :], table, -1
                )
    return table.reshape(len(table), table.shape[1] * table.shape[2])


def message_codes(move: Move, ranks: int, blocks: int) -> Ints:
    """Returns one number per (src, dst, block) of the messages, ascending."""
    pair, block = flatten_blocks(move.src.astype(np.int64) * ranks + move.dst, move.blocks)
    return np.sort(pair * blocks + block)


def have_same_blocks(a: Ints, b: Ints) -> bool:
    """Returns True if each row of one table has the blocks of the same row of the other."""
    if np.array_equal(a, b):
        return True
    width = max(a.shape[1], b.shape[1])
    left, right = (np.sort(pad_columns(x, width), axis=1) for x in (a, b))
    return np.array_equal(left, right)
