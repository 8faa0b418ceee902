"""Rows of a node in rounds, so that within a round no rank does two things at once.

A round takes, in row order, each row none of whose ranks an earlier remaining row still waits
for; so the rows of every rank keep their order. A partial permutation is one round as it is.
"""

from collections.abc import Iterator
from typing import TypeVar

import numpy as np

from planner.ir import Attend, Index, Move, Node, Step
from planner.partitions import Ints

AnyNode = TypeVar("AnyNode", bound=Node)


def attend_rounds(step: Step) -> Iterator[Attend]:
    """Yield a step's attends in parts in which every rank has one row."""
    return (part for node in step.attends for part in _in_rounds(node, node.rank))


def move_rounds(step: Step) -> Iterator[Move]:
    """Yield a step's moves in parts in which every rank sends and receives once at the most."""
    return (part for node in step.moves for part in _in_rounds(node, node.src, node.dst))


def _in_rounds(node: AnyNode, *columns: Ints) -> list[AnyNode]:
    """Cut a node where a rank occurs twice in a column."""
    if all(np.bincount(column).max(initial=0) < 2 for column in columns):
        return [node]
    return [node.only(rows) for rows in rounds(*columns)]


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
