"""Prices: the costs that a search uses, and the predicted score of a plan.

The planner knows no hardware. The caller of a search gives the costs of pairs, calls, merges and
keys, which suffice to distribute work, and a function that scores a whole plan.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ringloom.planner.passes.by_rows import Price

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Prices:
    """Seconds of work on a rank of speed 1, and how ranks differ."""

    pair: float  # per (query, key) pair of one query head
    launch: float  # per kernel call, on the device
    host: float  # per kernel call, on the host
    merge: float  # per query row of one head and merge
    speeds: tuple[float, ...]  # of each rank; 1.0 is normal
    node: int = 0  # ranks per node, 0 for a single node
    near: float = 0.0  # per key (all heads) sent to a rank from its own node
    far: float = 0.0  # per key sent from another node
    attend: Price | None = None  # prices the attends of a plan

    def nodes(self, ranks: int) -> int:
        """Returns the number of ranks per node; all ranks unless nodes are filled evenly."""
        return self.node if 1 < self.node < ranks and ranks % self.node == 0 else ranks

    def ends(self, work: Any, calls: Any, speeds: Any) -> Any:
        """Returns the finish times of ranks with these seconds of work and numbers of calls."""
        return np.maximum(self.host * calls, self.launch * calls + work) / speeds

    def speed(self, ranks: int) -> Floats:
        """Returns the speed of each rank: [ranks]."""
        given = np.array(self.speeds[:ranks], np.float64)
        return np.append(given, np.ones(ranks - len(given)))


@dataclass(frozen=True, slots=True)
class Score:
    """A prediction of a plan: its time, the busy time of each rank, the largest memory."""

    seconds: float
    busy: tuple[float, ...]  # seconds per rank
    peak_bytes: int
