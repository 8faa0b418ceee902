"""Values: the blocks that a name stands for on each rank, by piece and head: [ranks, p, h].

Pieces are the distinct sets of positions that a rank has, in block order; heads the slices of
them, counted from the lowest that it has. -1 stands for nothing.
"""

import numpy as np
from numpy.typing import NDArray

from planner.ir import Plan
from planner.loops.form import Ints
from planner.partitions import Side

FAR = 1 << 30
Bounds = tuple[Ints, Ints] | None  # first and last [n]; None: all
Pairs = tuple[Ints, Ints]  # rank [n], block [n]


def pack(ranks: int, side: Side, rank: Ints, block: Ints) -> Ints:
    """The table of what each rank has, from (rank, block) pairs in any order."""
    if not len(block):
        return np.full((ranks, 1, 1), -1, np.int32)
    code = rank.astype(np.intp) * len(side.chunks) + side.chunk[block]
    if (code[1:] <= code[:-1]).any():
        order = np.argsort(code, kind="stable")
        rank, block, code = rank[order], block[order], code[order]
    number = np.zeros(len(code), np.intp)  # of each different (rank, chunk)
    np.cumsum(code[1:] != code[:-1], out=number[1:])
    piece = number - number[np.searchsorted(rank, np.arange(ranks)).clip(max=len(rank) - 1)][rank]
    head = np.zeros(len(block), np.intp)
    if len(side.slices) > 1:
        low = np.full(ranks, FAR)
        np.minimum.at(low, rank, side.slice[block])
        head = side.slice[block] - low[rank]
    table = np.full((ranks, int(piece.max()) + 1, int(head.max()) + 1), -1, np.int32)
    table[rank, piece, head] = block
    return table


def owned(ranks: int, side: Side) -> Ints:
    """What each rank owns."""
    return pack(ranks, side, side.homes.astype(np.intp), np.arange(len(side)))


def held(plan: Plan, side: str) -> Ints | None:
    """What each rank has from the start, and what it owns of rectangles that read both."""
    copies = [h.flat() for h in plan.start if h.side == side]
    if not copies:
        return None
    blocks = plan.partition.side(side)
    here = np.zeros((plan.ranks, len(blocks)), np.bool_)
    for block, rank in copies:
        here[rank, block] = True
    kept = np.zeros_like(here)
    for _, attend in plan.attends():
        read = attend.q if side == "q" else attend.kv
        there = (read >= 0) & here[attend.rank[:, None], read]
        rows = there.any(axis=1) & ~there.all(axis=1)
        rank, block = flat(attend.rank[rows], read[rows])
        own = blocks.homes[block] == rank
        kept[rank[own], block[own]] = True
    rank, block = np.nonzero(here | kept)
    return pack(plan.ranks, blocks, rank, block)


def flat(rank: Ints, blocks: Ints) -> Pairs:
    """Each block of a table [n, w] beside the rank [n] of its row."""
    if blocks.shape[1] == 1 and (blocks >= 0).all():
        return rank.astype(np.intp), blocks[:, 0].astype(np.intp)
    row, column = np.nonzero(blocks >= 0)
    return rank[row].astype(np.intp), blocks[row, column].astype(np.intp)


def within(table: Ints, pieces: Bounds, heads: Bounds) -> Ints:
    """Only pieces and heads first..last of each rank (arrays [n] each): [n, p x h]."""
    for axis, ends in ((1, pieces), (2, heads)):
        if ends is not None:
            i = np.arange(table.shape[axis])
            on: NDArray[np.bool_] = (i >= ends[0][:, None]) & (i <= ends[1][:, None])
            table = np.where(on[:, :, None] if axis == 1 else on[:, None, :], table, -1)
    return table.reshape(len(table), table.shape[1] * table.shape[2])


def to_owners(table: Ints, homes: Ints, where: Ints, axis: int) -> Pairs:
    """Blocks of a table that others along an axis own: rank x ranks + owner, and the block."""
    rank, block = flat(np.arange(len(table)), table.reshape(len(table), -1))
    owner = homes[block].astype(np.intp)
    apart = where[rank, :-1] != where[owner, :-1]
    on = apart[:, axis] & (apart.sum(axis=1) == 1)
    return rank[on] * len(table) + owner[on], block[on]


def alike_along(table: Ints, mesh: tuple[int, ...], axis: int) -> bool:
    """True if all ranks along an axis have the same blocks."""
    cube = table.reshape(*mesh, -1)
    return bool((cube == cube.take([0], axis=axis)).all())
