"""Holdings of ranks while a plan goes by, for both engines: accumulators, copies of inputs.

A rank holds at most one accumulator per (tensor, block). A partial-sum transfer takes it away, an
attend or an arrival adds to it or, where it is absent, begins it: so merging is charged exactly
where two are added.

Messages that bring copies have numbers from 1 on; 0 stands for what the rank owns or had from the
start. Tensors that always travel together share one table.
"""

import numpy as np

from planner.analysis.tables import Table, attended_blocks, of_inputs
from planner.ir import ACCUMULATORS, Attend, Move, Plan
from planner.partitions import Ints
from simulator.costs.prices import Costs
from simulator.timeline import Floats


class Accumulators:
    """The accumulators of all ranks while a plan's rounds go by; rows as in `rounds`."""

    def __init__(self, costs: Costs) -> None:
        plan = costs.plan
        self._add, self._merge = costs.per_block("add"), costs.per_block("merge")
        self._present = {tensor: Table(plan, tensor) for tensor in ACCUMULATORS[plan.pass_]}

    def leave(self, move: Move) -> None:
        """Take the accumulators of a partial-sum transfer from their sources."""
        for tensor in move.tensors:
            self._present[tensor][move.src, move.blocks] = False

    def attended(self, node: Attend) -> Floats:
        """Add each row's results to its accumulators; returns the seconds: float64 [rows]."""
        seconds = np.zeros(len(node))
        for tensor, price in self._add.items():
            seconds += self._join(tensor, node.rank, attended_blocks(node, tensor), price)
        return seconds

    def arrived(self, move: Move) -> Floats:
        """Merge each message into the accumulators; returns the seconds: float64 [rows]."""
        seconds = np.zeros(len(move))
        for tensor in move.tensors:
            seconds += self._join(tensor, move.dst, move.blocks, self._merge[tensor])
        return seconds

    def _join(self, tensor: str, rank: Ints, blocks: Ints, price: Floats) -> Floats:
        present = self._present[tensor]
        entries = present.of(rank, blocks)
        seconds: Floats = (price.take(blocks.T) * present[entries].T).sum(axis=0)
        present[entries] = True
        return seconds


class Origins:
    """The message that brought each block of an input to each rank, while a plan's rounds go by."""

    def __init__(self, plan: Plan) -> None:
        self._tables = of_inputs(plan, np.int32)

    def sent(self, move: Move) -> list[Ints]:
        """Return the origins of everything that each message carries, at its source."""
        return [table[move.src, move.blocks] for table in self._of(move)]

    def attended(self, node: Attend) -> list[Ints]:
        """Return the origins of all the inputs of each row that travel, on its rank."""
        tables = self._tables.items()
        return [table[node.rank, attended_blocks(node, tensor)] for (tensor, *_), table in tables]

    def arrive(self, move: Move, first: int) -> None:
        """Note the messages of a move of inputs, numbered from `first` on."""
        messages = np.arange(first, first + len(move), dtype=np.int32)
        for table in self._of(move):
            table[move.dst, move.blocks] = messages[:, None]

    def _of(self, move: Move) -> list[Table]:
        return [table for (tensor, *_), table in self._tables.items() if tensor in move.tensors]
