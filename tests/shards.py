"""The shards of ranks, one after the other."""

import numpy as np
from numpy.typing import NDArray

from ringloom.planner.partitions import Side


def in_order(side: Side, ranks: int) -> NDArray[np.int64]:
    """Positions rank after rank: a permutation for every layout by tokens."""
    return np.concatenate([side.positions(rank) for rank in range(ranks)])
