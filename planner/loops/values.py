"""Values: the blocks that a name stands for on each rank, by piece and head: [ranks, p, h].

Pieces are the distinct sets of positions that a rank has, in block order; heads the slices of
them, counted from the lowest that it has. -1 stands for nothing.
"""

import numpy as np
from numpy.typing import NDArray

from planner.loops.form import Ints
from planner.partitions import Side

FAR = 1 << 30
NONE = np.zeros(0, np.intp)


def pack(ranks: int, side: Side, rank: Ints, block: Ints) -> Ints:
    """The table of what each rank has, from (rank, block) pairs in any order."""
    if not len(block):
        return np.full((ranks, 1, 1), -1, np.intp)
    many = len(side.chunks)
    seen, at = np.unique(rank.astype(np.intp) * many + side.chunk[block], return_inverse=True)
    piece = at - np.searchsorted(seen // many, np.arange(ranks))[rank]
    low = np.full(ranks, FAR)
    np.minimum.at(low, rank, side.slice[block])
    head = side.slice[block] - low[rank]
    table = np.full((ranks, int(piece.max()) + 1, int(head.max()) + 1), -1, np.intp)
    table[rank, piece, head] = block
    return table


def owned(ranks: int, side: Side) -> Ints:
    """What each rank owns."""
    return pack(ranks, side, side.homes.astype(np.intp), np.arange(len(side)))


def flat(rank: Ints, blocks: Ints) -> tuple[Ints, Ints]:
    """Each block of a table [n, w] beside the rank [n] of its row."""
    row, column = np.nonzero(blocks >= 0)
    return rank[row].astype(np.intp), blocks[row, column].astype(np.intp)


def within(table: Ints, pieces: tuple[Ints, Ints] | None, heads: tuple[Ints, Ints] | None) -> Ints:
    """Only pieces and heads first..last of each rank (arrays [n] each): [n, p x h]."""
    for axis, ends in ((1, pieces), (2, heads)):
        if ends is not None:
            i = np.arange(table.shape[axis])
            on: NDArray[np.bool_] = (i >= ends[0][:, None]) & (i <= ends[1][:, None])
            table = np.where(on[:, :, None] if axis == 1 else on[:, None, :], table, -1)
    return table.reshape(len(table), -1)


def stack(tables: list[Ints]) -> Ints:
    """Tables [n, w] of any widths, one below the other."""
    width = max(t.shape[1] for t in tables)
    return np.concatenate(
        [np.pad(t, ((0, 0), (0, width - t.shape[1])), constant_values=-1) for t in tables]
    )
