"""Load per rank and step, bytes per link: facts as small tables."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.analysis.balance import loads
from planner.ir import Plan
from ringloom.report.facts.spans import SHOWN
from simulator.facts import traffic


@dataclass(frozen=True, eq=False)
class Cells:
    """Cells that hold something, as columns of equal length, and how wide the table is."""

    column: NDArray[np.intp]
    row: NDArray[np.intp]
    value: NDArray[np.int64]
    columns: int
    rows: int


def load_of(plans: Sequence[Plan]) -> Cells:
    """Allowed (query, key, head) triples per round (columns) and rank (rows), passes in turn.

    Of the first ranks, as many as pictures show.
    """
    table = np.concatenate([loads(plan) for plan in plans])
    return cells(table.T[:SHOWN])


def links_of(plans: Sequence[Plan]) -> Cells:
    """Bytes from each rank (rows) to each rank (columns), all passes; the first ranks."""
    return cells(np.sum([traffic(plan) for plan in plans], axis=0)[:SHOWN, :SHOWN])


def cells(table: NDArray[np.int64]) -> Cells:
    """The cells of a table [rows, columns] that are not 0."""
    row, column = np.nonzero(table)
    return Cells(column, row, table[row, column], table.shape[1], table.shape[0])
