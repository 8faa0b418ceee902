"""Which accumulators lie where, so that merging is charged exactly where there is something to add.

A rank holds at most one accumulator per (tensor, block). A hand-over takes it away, an attend or
an arrival adds to it or, where there is none, begins it.
"""

import numpy as np

from planner.ir import ADDS, TENSORS, Attend, Move
from planner.partitions import Ints
from simulator.costs import Costs, Floats
from simulator.engines.cells import Cells
from simulator.engines.rounds import Where


class Accumulators:
    """The accumulators of all ranks while a plan's rounds go by; rows as in `rounds`."""

    def __init__(self, costs: Costs) -> None:
        plan = costs.plan
        self._add, self._merge = costs.add, costs.merge
        self._cells = {t: Cells(plan.ranks, len(plan.side(t))) for t in ADDS[plan.pass_]}
        self._there = {t: np.zeros(cells.size, bool) for t, cells in self._cells.items()}

    def leave(self, move: Move, src: Where) -> None:
        """The accumulators of a hand-over are gone from their sources."""
        for tensor in move.tensors:
            self._there[tensor][self._cells[tensor].of(src, move.blocks)] = False

    def attended(self, node: Attend, rank: Where) -> Floats:
        """Seconds of adding each row's results to what is there: float64 [rows]."""
        found = [
            self._join(tensor, rank, node.q if TENSORS[tensor].side == "q" else node.kv, price)
            for tensor, price in self._add.items()
        ]
        return found[0] if len(found) == 1 else found[0] + found[1]

    def arrived(self, move: Move, dst: Where) -> Floats:
        """Seconds of merging each message into what is there: float64 [rows]."""
        found = [self._join(t, dst, move.blocks, self._merge[t]) for t in move.tensors]
        return found[0] if len(found) == 1 else np.sum(found, axis=0)

    def _join(self, tensor: str, rank: Where, blocks: Ints, price: Floats) -> Floats:
        cells, there = self._cells[tensor].of(rank, blocks), self._there[tensor]
        if blocks.shape[1] == 1:
            seconds: Floats = price[blocks[:, 0]] * there[cells]
            there[cells] = True
            return seconds
        seconds = (price[blocks] * there[cells]).sum(axis=1)
        there[cells[blocks >= 0]] = True
        return seconds
