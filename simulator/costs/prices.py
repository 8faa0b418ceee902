"""Seconds of each attend and merge of a plan on some hardware.

The cost of an attend is that of its kernel calls (`ringloom.simulator.costs.kernels`) and of
merging their results. Rectangles are cut into calls in `ringloom.simulator.costs.rectangles`. A
pair of one head has 2 (head_dim + v_head_dim) flop, in the backward pass 6 head_dim + 4 v_head_dim.

All other costs are sums of `ringloom.simulator.costs.terms`. Adding to an absent accumulator is
free.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

import numpy as np

from ringloom.planner.ir import ACCUMULATORS, Attend, Move, Plan
from ringloom.simulator.costs.kernels import Kernels
from ringloom.simulator.costs.rectangles import Floats, Rectangles
from ringloom.simulator.costs.terms import Event, terms
from ringloom.simulator.hardware import Hardware
from ringloom.simulator.hardware import hardware as find_hardware

CACHE = "_rectangles"


@dataclass(frozen=True, eq=False)
class Costs:
    """The costs of the rows of one plan on one hardware, in seconds."""

    plan: Plan
    hardware: Hardware

    @cached_property  # used in every step: benchmarks/bench_scale.py
    def kernels(self) -> Kernels:
        """The costs of kernel calls."""
        return Kernels(self.hardware, self.plan.workload, self.plan.pass_)

    @cached_property
    def rectangles(self) -> Rectangles:
        """The kernel calls of every row, cached on the plan for kernels with the same cuts."""
        cache, form = vars(self.plan).setdefault(CACHE, {}), self.kernels.form
        if form not in cache:
            cache[form] = Rectangles(self.plan, self.kernels)
        rectangles: Rectangles = cache[form]
        return rectangles

    def attend(self, node: Attend) -> Floats:
        """Returns the seconds of each row, including launches: float64 [rows]."""
        heads = self.rectangles.tiles.heads(node)
        *counts, rows, columns = self.rectangles.of(node)
        seconds: Floats = self.kernels.total(counts, heads)
        merged = {"OUT": rows, "DQ": rows, "DKV": columns / self.plan.workload.group}
        for tensor in ACCUMULATORS[self.plan.pass_]:
            seconds = seconds + merged[tensor] * heads * self._per_token("add", tensor)
        for term in terms("attend"):
            seconds = seconds + term(self, node)
        return seconds

    def per_block(self, event: Event) -> dict[str, Floats]:
        """Returns the seconds to add or merge each block, by accumulator; 0 for block -1."""
        names = ACCUMULATORS[self.plan.pass_]
        sides = map(self.plan.side, names)
        tokens = (np.append(side.sizes * side.head_counts, 0) for side in sides)
        return {n: t * self._per_token(event, n) for n, t in zip(names, tokens, strict=True)}

    def _per_token(self, event: Event, tensor: str) -> float:
        """Returns the seconds of adding to an accumulator, per token and head."""
        return float(sum(term(self, tensor) for term in terms(event)))

    @property
    def copying(self) -> float:
        """The seconds per byte of copying heads in an all-to-all, received or local."""
        return float(sum(term(self) for term in terms("exchange")))

    def incast(self, move: Move) -> Floats:
        """Returns the factor on the time of messages in an all-to-all: float64 [rows]."""
        src, dst = (ranks // self.hardware.ranks_per_node for ranks in (move.src, move.dst))
        return np.where(src != dst, self.hardware.option("inter.incast"), 1.0)

    @property
    def prologue(self) -> Floats:
        """The seconds of each rank before step 0: float64 [ranks]."""
        return sum((term(self) for term in terms("prologue")), np.zeros(self.plan.ranks))


def attend_price(hardware: Hardware | str | Path) -> Callable[[Plan], Costs]:
    """Returns a function for `rl.by_rows` that prices the attends of a plan on some hardware."""
    return partial(Costs, hardware=find_hardware(hardware))
