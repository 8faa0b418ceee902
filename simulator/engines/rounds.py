"""Rows of a node in rounds, so that within a round no rank does two things at once.

A round takes, in row order, each row none of whose ranks an earlier remaining row still waits
for; so the rows of every rank keep their order. A partial permutation is one round as it is.
"""

from collections.abc import Iterator
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from planner.ir import Attend, Move
from planner.partitions import Ints
from simulator.network.ports import Where

Index = NDArray[np.intp]
REMEMBERED = 512  # columns


def attend_rounds(node: Attend) -> list[Attend]:
    """Cut an attend into parts in which every rank has one row."""
    if alone(node.rank):
        return [node]
    return [Attend(node.rank[rows], node.q[rows], node.kv[rows]) for rows in rounds(node.rank)]


def move_rounds(node: Move) -> list[Move]:
    """Cut a move into parts in which every rank sends once and receives once at the most."""
    if alone(node.src) and alone(node.dst):
        return [node]
    return [
        Move(node.tensors, node.blocks[rows], node.src[rows], node.dst[rows])
        for rows in rounds(node.src, node.dst)
    ]


def alone(ranks: Ints) -> bool:
    """True if no rank occurs twice; the columns of a ring are the same in every step."""
    return _alone(ranks.tobytes())


@lru_cache(maxsize=REMEMBERED)
def _alone(column: bytes) -> bool:
    return bool(np.bincount(np.frombuffer(column, np.int32)).max(initial=0) < 2)


def rounds(*columns: Ints) -> Iterator[Index]:
    """Yield the row numbers of each round; `columns` [n] are the ports that a row occupies."""
    rows = np.arange(len(columns[0]))
    first = [np.zeros(int(column.max(initial=0)) + 1, np.intp) for column in columns]
    while rows.size:
        free = np.ones(len(rows), bool)
        for column, table in zip(columns, first, strict=True):
            used = column[rows]
            table[used[::-1]] = rows[::-1]
            free &= table[used] == rows
        yield rows[free]
        rows = rows[~free]


def where(ranks: Ints) -> Where:
    """Return a column of ranks as an index; a slice, which is cheaper, if they are consecutive."""
    return _where(ranks.tobytes())


@lru_cache(maxsize=REMEMBERED)
def _where(column: bytes) -> Where:
    ranks: Ints = np.frombuffer(column, np.int32)
    if len(ranks) and ranks[-1] - ranks[0] + 1 == len(ranks) and (ranks[1:] > ranks[:-1]).all():
        return slice(int(ranks[0]), int(ranks[-1]) + 1)
    return ranks.astype(np.intp)
