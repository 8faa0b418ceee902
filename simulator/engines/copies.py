"""Copies of inputs and the messages that brought them to their ranks, for both engines.

Messages have numbers from 1 on; 0 stands for what the rank owns or had from the start. Tensors that
always travel together share one table.
"""

import numpy as np

from planner.analysis.tables import Table, attended_blocks, of_inputs
from planner.ir import Attend, Move, Plan
from planner.partitions import Ints


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
