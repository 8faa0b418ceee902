"""Copies of inputs and the messages that brought them to their ranks, for both engines.

Messages have numbers from 1 on; 0 stands for what the rank owns or had from the start. Tensors that
always travel together share one table.
"""

from collections.abc import Sequence

import numpy as np

from planner.analysis.marks import cells, groups
from planner.ir import INPUTS, TENSORS, Attend, Move, Plan
from planner.partitions import Ints


class Origins:
    """The message that brought each block of an input to each rank, while a plan's rounds go by."""

    def __init__(self, plan: Plan) -> None:
        self._tables = dict[str, _Table]()
        for tensors, leaves in groups(plan).items():
            if leaves and tensors[0] in INPUTS[plan.pass_]:
                self._tables |= dict.fromkeys(tensors, _Table(plan, tensors[0]))

    def sent(self, move: Move) -> list[Ints]:
        """Return the origins of everything that each message carries, at its source."""
        return [table.of(move.src, move.blocks) for table in self._of(move.tensors)]

    def attended(self, node: Attend) -> list[Ints]:
        """Return the origins of all the inputs of each row that travel, on its rank."""
        blocks = {"q": node.q, "kv": node.kv}
        return [table.of(node.rank, blocks[table.side]) for table in self._of([*self._tables])]

    def arrive(self, move: Move, first: int) -> None:
        """Note the messages of a move of inputs, numbered from `first` on."""
        for table in self._of(move.tensors):
            table.put(move.dst, move.blocks, np.arange(first, first + len(move), dtype=np.int32))

    def _of(self, tensors: Sequence[str]) -> list["_Table"]:
        return list(dict.fromkeys(self._tables[t] for t in tensors if t in self._tables))


class _Table:
    """Numbers of messages by rank and block; memory that no message touches is never taken."""

    def __init__(self, plan: Plan, tensor: str) -> None:
        self.side, self._cells = TENSORS[tensor].side, cells(plan, tensor)
        self._message = np.zeros(self._cells.size, np.int32)

    def of(self, rank: Ints, blocks: Ints) -> Ints:
        return self._message[self._cells.of(rank, blocks)]

    def put(self, rank: Ints, blocks: Ints, messages: Ints) -> None:
        self._message[self._cells.of(rank, blocks)] = messages[:, None]
        self._message[self._cells.nowhere] = 0
