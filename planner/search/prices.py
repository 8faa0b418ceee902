"""Prices: what a search is told of a machine, and the score of a plan that something else predicts.

The planner knows no hardware. Whoever searches says what pairs, calls, merges and keys cost, which
is enough to share out work; the score of a whole plan comes from a function.
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

    pair: float  # of a (query, key) pair of one query head
    launch: float  # of a kernel call, on its device
    host: float  # of a kernel call, on its host
    merge: float  # of a query row of one head whose results are merged once
    speeds: tuple[float, ...]  # of each rank, 1.0 is ordinary
    node: int = 0  # ranks per node, 0 for a single node
    near: float = 0.0  # of all heads of a key that comes to a rank from its own node
    far: float = 0.0  # the same from another node
    attend: Price | None = None  # of the attends of a plan

    def nodes(self, ranks: int) -> int:
        """Returns the ranks of each node, all of them unless nodes are filled evenly."""
        return self.node if 1 < self.node < ranks and ranks % self.node == 0 else ranks

    def ends(self, work: Any, calls: Any, speeds: Any) -> Any:
        """Returns when ranks end that have so many seconds of work in so many calls."""
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
