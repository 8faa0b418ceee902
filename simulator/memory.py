"""Memory over time: home inputs and home accumulators, and all that is away from home.

What is away follows the plan's lifetimes: a copy takes its bytes from the step in which it is
received to its last use, an accumulator from its first contribution until it has left.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.analysis.liveness import occupancy, readable
from planner.ir import ADDS, READS, Plan

Bytes = NDArray[np.int64]
KEPT = 1 << 22  # steps x ranks up to which memory over time is kept


@dataclass(frozen=True, eq=False)
class Memory:
    """Bytes of the plan's tensors on each rank; `live` is None where it was too large to keep."""

    home: Bytes  # inputs and accumulators at home, there throughout: [ranks]
    peak: Bytes  # the most at any time: [ranks]
    peak_step: NDArray[np.intp]  # the first step with that much: [ranks]
    live: Bytes | None  # the most at any time of each step: [steps, ranks]


def memory(plan: Plan) -> Memory:
    """Bytes live on each rank in each step; batch and dtypes are those of the workload."""
    home = np.zeros(plan.ranks, np.int64)
    for tensor in READS[plan.pass_] + ADDS[plan.pass_]:
        np.add.at(home, plan.side(tensor).homes, plan.block_bytes(tensor))
    away = [occupancy(plan, t, plan.block_bytes(t)) for t in sorted(_travelling(plan))]
    peak, peak_step = home.copy(), np.zeros(plan.ranks, np.intp)
    for step in range(len(plan.steps)):
        now = home + sum(tensor[step] for tensor in away)
        peak_step[now > peak] = step
        peak = np.maximum(peak, now)
    small = len(plan.steps) * plan.ranks <= KEPT
    live = np.broadcast_to(home, (len(plan.steps), plan.ranks)) + sum(away) if small else None
    return Memory(home, peak, peak_step, live)


def _travelling(plan: Plan) -> set[str]:
    """Tensors that are ever away from home; what never travels never is."""
    nodes = [m.tensors for _, m in plan.moves()]
    nodes += [(*h.tensors, *readable(h)) for h in plan.start]
    return {tensor for tensors in nodes for tensor in tensors}
