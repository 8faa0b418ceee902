"""Copies of inputs, step by step: the ranks on which they arrive, and the ranks that read them."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from ringloom.planner.analysis.tables import Table, attended_blocks
from ringloom.planner.ir import INPUTS, Plan
from ringloom.planner.partitions import Ints


class CopyRows(NamedTuple):
    """Blocks [n, w] and the rank [n] of each row; for messages, also the destination `to` [n]."""

    rank: Ints
    blocks: Ints
    to: Ints | None = None


class Copies:
    """The copies of a tensor on ranks other than the owner; step -1 is before the plan begins.

    If a rank computes STATS from an initial copy of OUT, it reads this OUT, and the STATS appear,
    in the step after DOUT arrives.
    """

    def __init__(self, plan: Plan, tensor: str) -> None:
        self._plan, self._tensor, self._out = plan, tensor, None
        out_copies = [copies for copies in plan.start if copies.tensors == ("OUT",)]
        if out_copies and tensor in ("OUT", "STATS"):
            self._out = Table(plan, "OUT")
            for copies in out_copies:
                self._out[copies.rank, copies.blocks] = True

    def comes(self, number: int) -> Iterator[CopyRows]:
        """Yields the copies that ranks receive or compute in a step."""
        yield from self._received(self._tensor, number)
        if self._tensor == "STATS":
            yield from self._computed(number)

    def readable(self, number: int) -> Iterator[CopyRows]:
        """Yields the copies readable from a step on: computed, or received in the step before."""
        yield from self._received(self._tensor, number - 1)
        if self._tensor == "STATS":
            yield from self._computed(number)

    def reads(self, number: int) -> Iterator[CopyRows]:
        """Yields the copies that messages and attends of a step read."""
        if 0 <= number < len(self._plan.steps):
            step, tensor = self._plan.steps[number], self._tensor
            yield from (CopyRows(m.src, m.blocks, m.dst) for m in step.moves if tensor in m.tensors)
            if tensor in INPUTS[self._plan.pass_]:
                yield from (CopyRows(a.rank, attended_blocks(a, tensor)) for a in step.attends)
        if self._tensor == "OUT":
            yield from self._computed(number)

    def _received(self, tensor: str, number: int) -> Iterator[CopyRows]:
        plan = self._plan
        if number == -1:
            yield from (CopyRows(h.rank, h.blocks) for h in plan.start if tensor in h.tensors)
        elif 0 <= number < len(plan.steps):
            moves = plan.steps[number].moves
            yield from (CopyRows(m.dst, m.blocks) for m in moves if tensor in m.tensors)

    def _computed(self, number: int) -> Iterator[CopyRows]:
        """Yields the STATS that ranks compute in a step from OUT of the same block."""
        if self._out is not None:
            for rank, blocks, _ in self._received("DOUT", number - 1):
                is_held = self._out[rank, blocks]
                rows = is_held.any(axis=1)
                yield CopyRows(rank[rows], np.where(is_held, blocks, -1)[rows])
