"""Places of (rank, block) in a flat table, for a whole column of rows at once."""

import numpy as np
from numpy.typing import NDArray

from planner.partitions import Ints


class Cells:
    """The layout of a table of `ranks` x `blocks`, with one more place per rank for block -1.

    The places (rank r, block r + d) of all ranks lie side by side: in a ring, all that ranks touch
    in one step is one stretch of memory, and the recurrence times benchmarks/bench_scale.py's ring
    of 4,096 ranks in three quarters of the time. Places may be negative, from the table's end.
    """

    def __init__(self, ranks: int, blocks: int) -> None:
        self._ranks = ranks
        self.size = ranks * max(ranks, blocks + 1)
        self._first = np.arange(ranks) * (1 - ranks)

    def of(self, rank: Ints, blocks: Ints) -> NDArray[np.int64]:
        """Return the places of a block table: [rows, width]."""
        cells: NDArray[np.int64] = np.multiply(blocks, self._ranks, dtype=np.int64)
        cells += self._first[rank][:, None]
        return cells

    def nowhere(self) -> NDArray[np.int64]:
        """Return the places of block -1: [ranks]."""
        return np.asarray(self._first - self._ranks)
