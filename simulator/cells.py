"""Where (rank, block) lies in a flat table, for a whole column of rows at once."""

import numpy as np
from numpy.typing import NDArray

from planner.partitions import Ints
from simulator.rounds import Where


class Cells:
    """The layout of a table of `ranks` x `blocks`; the last entry of a row is for block -1.

    Block -1 of a rank comes out as the last entry of the row before, or of the table: any of
    them serves, as nobody ever writes there.
    """

    def __init__(self, ranks: int, blocks: int) -> None:
        self.shape = ranks, blocks + 1
        self.size = ranks * (blocks + 1)
        self._first = np.arange(ranks) * (blocks + 1)

    def of(self, rank: Where, blocks: Ints) -> NDArray[np.int64]:
        """Entries of a block table [rows, width]: [rows] for width 1, [rows, width] otherwise."""
        first = self._first[rank]
        cells: NDArray[np.int64]
        cells = first + blocks[:, 0] if blocks.shape[1] == 1 else first[:, None] + blocks
        return cells
