"""Prices: the costs that a search uses, and the predicted score of a plan.

The planner knows no hardware. The caller of a search provides a function that scores a plan, and
the costs of pairs, calls, merges and keys, which are sufficient to distribute work.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ringloom.planner.passes.by_rows import Price

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Prices:
    """Seconds of work on a rank of speed 1, the speeds of ranks, and their nodes."""

    pair: float  # per (query, key) pair of one query head
    launch: float  # per kernel call, on the device
    host: float  # per kernel call, on the host
    merge: float  # per query row of one head and merge
    speeds: tuple[float, ...]  # of each rank; 1.0 is normal
    node: int = 0  # ranks per node, 0 for a single node
    near: float = 0.0  # per key (all heads) that a rank receives from its own node
    far: float = 0.0  # per key that a rank receives from another node
    attend: Price | None = None  # prices the attends of a plan

    def ranks_per_node(self, ranks: int) -> int:
        """Returns the number of ranks per node; all ranks if nodes would have different numbers."""
        return self.node if 1 < self.node < ranks and ranks % self.node == 0 else ranks

    def finish_times(self, work: Any, calls: Any, speeds: Any) -> Any:
        """Returns the finish times of ranks with the given seconds of work and numbers of calls."""
        return np.maximum(self.host * calls, self.launch * calls + work) / speeds

    def speed_of_ranks(self, ranks: int) -> Floats:
        """Returns the speed of each rank: [ranks]."""
        speeds = np.array(self.speeds[:ranks], np.float64)
        return np.append(speeds, np.ones(ranks - len(speeds)))


@dataclass(frozen=True, slots=True)
class Score:
    """A prediction for a plan: its time, the busy time of each rank, and the peak memory."""

    seconds: float
    busy: tuple[float, ...]  # seconds per rank
    peak_bytes: int
