"""Memory over time: home inputs and home accumulators, and all that is away from home.

Tensors away from home follow the plan's lifetimes: a copy takes its bytes from the step in which
it is received to its last use, an accumulator from its first contribution until it has left.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.analysis.liveness import held_away
from planner.analysis.marks import readable
from planner.ir import ACCUMULATORS, INPUTS, Plan

Bytes = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Memory:
    """Bytes of the plan's tensors on each rank."""

    home: Bytes  # inputs and accumulators at home, throughout: [ranks]
    peak: Bytes  # the most at any time: [ranks]
    live: Bytes  # the most at any time of each step: [steps, ranks]

    def __repr__(self) -> str:
        return f"<Memory of {len(self.peak)} ranks: at most {int(self.peak.max(initial=0))} bytes>"


def memory(plan: Plan) -> Memory:
    """Return bytes live on each rank in each step; batch and dtypes are those of the workload."""
    home = np.zeros(plan.ranks, np.int64)
    for tensor in INPUTS[plan.pass_] + ACCUMULATORS[plan.pass_]:
        np.add.at(home, plan.side(tensor).homes, plan.block_bytes(tensor))
    live = np.tile(home, (len(plan.steps), 1))
    for tensor in sorted(_travelling(plan)):
        for number, held in held_away(plan, tensor, plan.block_bytes(tensor)):
            live[number] += held
    peak = np.maximum(home, live.max(axis=0, initial=0))
    return Memory(home, peak, live)


def _travelling(plan: Plan) -> set[str]:
    """Return the tensors that are ever away from home."""
    nodes = [m.tensors for _, m in plan.moves()]
    nodes += [(*copy.tensors, *readable(copy)) for copy in plan.start]
    return {tensor for tensors in nodes for tensor in tensors}
