"""Machine-independent costs of attends: counts pairs, calls and merged rows."""

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ringloom.planner.analysis.tiles import tiles
from ringloom.planner.ir import ACCUMULATORS, Attend, Plan
from ringloom.planner.kernel_calls import Call, rectangle_calls
from ringloom.planner.kernel_calls.positions import Positions, count_repeated
from ringloom.planner.kernel_calls.strips import EACH
from ringloom.planner.partitions import Ints

# The merge of a row of 128 elements moves about 1,300 bytes, which takes an H100 the time of about
# 500 pairs of this head_dim.
MERGE = 500

Floats = NDArray[np.float64]


class PairCosts:
    """Costs of rectangles: the pairs that calls compute, plus costs of calls and merges."""

    def __init__(self, plan: Plan) -> None:
        self._plan, self._tiles = plan, tiles(plan)
        self._positions = Positions(plan.workload, plan.partition)
        self._known = dict[tuple[bytes, bytes], float]()

    def attend(self, node: Attend) -> Floats:
        """Returns the cost of each rectangle: float64 [rows]."""
        sizes = [np.append(self._plan.partition.side(s).sizes, 0) for s in ("q", "kv")]
        rows, columns = sizes[0][node.q].sum(axis=1), sizes[1][node.kv].sum(axis=1)
        cost: Floats = (rows * columns + EACH).astype(np.float64)  # full calls
        q, kv = self._positions.chunks(node.q, node.kv)
        for n in np.flatnonzero(~self._tiles.full(node)).tolist():
            cost[n] = self._cost(q[n], kv[n])
        return np.asarray(cost * self._tiles.heads(node))

    def per_block(self, event: Literal["add"]) -> dict[str, Floats]:
        """Returns, per accumulator, the cost of adding a result to each block; 0 for block -1."""
        names = ACCUMULATORS[self._plan.pass_]
        sides = map(self._plan.side, names)
        return {
            name: np.append(side.sizes * side.head_counts, 0) * float(MERGE)
            for name, side in zip(names, sides, strict=True)
        }

    def _cost(self, q: Ints, kv: Ints) -> float:
        key = q.tobytes(), kv.tobytes()
        if key not in self._known:
            rectangle = self._positions.rectangle(*self._positions.in_order(q, kv))
            calls = rectangle_calls(*rectangle)
            merged = count_repeated([call.rows for call in calls])
            if self._plan.pass_ == "backward":
                merged += count_repeated([call.columns for call in calls])
            self._known[key] = sum(map(_pairs, calls)) + EACH * len(calls) + MERGE * merged
        return self._known[key]


def _pairs(call: Call) -> float:
    """Counts the pairs that a call computes; pairs under an explicit mask count double."""
    rows, columns = len(call.rows), len(call.columns)
    if call.band is True:
        return rows * (2 * columns - rows + 1) / 2
    return rows * columns * (1 + (call.band is not False))
