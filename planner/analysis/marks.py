"""Tables with an entry per rank and block, read for whole nodes at a time."""

import numpy as np
from numpy.typing import NDArray

from planner.columns import rowwise
from planner.ir import TENSORS, Attend, Index, Plan
from planner.partitions import Ints

Bits = NDArray[np.bool_]


def places(plan: Plan, tensor: str, rank: Ints, blocks: Ints) -> Index:
    """Entry of each block [n, w] on its row's rank [n] in a flat table; block -1 has a spare one.

    The table has an entry more per rank than there are blocks.
    """
    first = rank.astype(np.intp) * (len(plan.side(tensor)) + 1)
    entries: Index = first[:, None] + blocks
    return entries


def attended_blocks(attend: Attend, tensor: str) -> Ints:
    """The blocks of the side of a tensor in each rectangle: [n, w]."""
    return attend.q if TENSORS[tensor].side == "q" else attend.kv


class Marks:
    """One bit per rank and block of a tensor; block -1 is never marked."""

    def __init__(self, plan: Plan, tensor: str) -> None:
        self.width = len(plan.side(tensor)) + 1
        self.bits = np.zeros(plan.ranks * self.width, np.bool_)

    def set(self, entries: Index, value: bool) -> None:
        """Mark or unmark entries."""
        self.bits[entries] = value
        if value:
            self.bits[self.width - 1 :: self.width] = False

    def any(self, entries: Index) -> Bits:
        """Returns True for rows with a marked entry: bool [n]."""
        return rowwise(np.logical_or, self.bits[entries])
