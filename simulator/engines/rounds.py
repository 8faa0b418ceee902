"""Rows of a node in rounds, so that within a round no rank does two things at once.

A round takes, in row order, each row none of whose ranks an earlier remaining row still waits
for; so the rows of every rank keep their order. A partial permutation is one round as it is.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from planner.ir import Attend, Move
from planner.partitions import Ints

Index = NDArray[np.intp]


def attend_rounds(node: Attend) -> list[Attend]:
    """Cut an attend into parts in which every rank has one row."""
    if distinct(node.rank):
        return [node]
    return [Attend(node.rank[rows], node.q[rows], node.kv[rows]) for rows in rounds(node.rank)]


def move_rounds(node: Move) -> list[Move]:
    """Cut a move into parts in which every rank sends once and receives once at the most."""
    if distinct(node.src) and distinct(node.dst):
        return [node]
    return [
        Move(node.tensors, node.blocks[rows], node.src[rows], node.dst[rows])
        for rows in rounds(node.src, node.dst)
    ]


def distinct(ranks: Ints) -> bool:
    """True if no rank occurs twice."""
    return bool(np.bincount(ranks).max(initial=0) < 2)


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
