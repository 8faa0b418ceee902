"""Memory over time: the inputs and accumulators that a rank owns, and blocks of other ranks.

A copy takes memory from the step in which it is received to its last use, an accumulator of
another rank from its first contribution until it is sent.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ringloom.planner.analysis.liveness import held_away
from ringloom.planner.analysis.tables import group_tensors
from ringloom.planner.ir import ACCUMULATORS, INPUTS, Plan

Bytes = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Memory:
    """The bytes of a plan's tensors on each rank."""

    owned: Bytes  # inputs and accumulators that the rank owns, in all steps: [ranks]
    peak: Bytes  # maximum over the run: [ranks]
    live: Bytes  # maximum in each step: [steps, ranks]

    def __repr__(self) -> str:
        return f"<Memory of {len(self.peak)} ranks: at most {int(self.peak.max(initial=0))} bytes>"


def memory(plan: Plan) -> Memory:
    """Returns the live bytes on each rank in each step, for the workload's batch and dtypes."""
    owned = np.zeros(plan.ranks, np.int64)
    for tensor in INPUTS[plan.pass_] + ACCUMULATORS[plan.pass_]:
        np.add.at(owned, plan.side(tensor).owners, plan.block_bytes(tensor))
    live = np.tile(owned, (len(plan.steps), 1))
    for tensors in (names for names, leaves in group_tensors(plan).items() if leaves):
        weights = np.sum([plan.block_bytes(tensor) for tensor in tensors], axis=0)
        for number, held in held_away(plan, tensors[0], weights):
            live[number] += held
    peak = np.maximum(owned, live.max(axis=0, initial=0))
    return Memory(owned, peak, live)
