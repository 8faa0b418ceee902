"""Memory over time: what ranks own, inputs and accumulators, and what they hold for others.

Tensors that others own follow the plan's lifetimes: a copy takes its bytes from the step in which
it is received to its last use, an accumulator from its first contribution until it has left.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ringloom.planner.analysis.liveness import held_away
from ringloom.planner.analysis.tables import groups
from ringloom.planner.ir import ACCUMULATORS, INPUTS, Plan

Bytes = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Memory:
    """Bytes of the plan's tensors on each rank."""

    owned: Bytes  # inputs and accumulators of what it owns, throughout: [ranks]
    peak: Bytes  # the most at any time: [ranks]
    live: Bytes  # the most at any time of each step: [steps, ranks]

    def __repr__(self) -> str:
        return f"<Memory of {len(self.peak)} ranks: at most {int(self.peak.max(initial=0))} bytes>"


def memory(plan: Plan) -> Memory:
    """Return bytes live on each rank in each step; batch and dtypes are those of the workload."""
    owned = np.zeros(plan.ranks, np.int64)
    for tensor in INPUTS[plan.pass_] + ACCUMULATORS[plan.pass_]:
        np.add.at(owned, plan.side(tensor).owners, plan.block_bytes(tensor))
    live = np.tile(owned, (len(plan.steps), 1))
    for tensors in (names for names, leaves in groups(plan).items() if leaves):
        weights = np.sum([plan.block_bytes(tensor) for tensor in tensors], axis=0)
        for number, held in held_away(plan, tensors[0], weights):
            live[number] += held
    peak = np.maximum(owned, live.max(axis=0, initial=0))
    return Memory(owned, peak, live)
