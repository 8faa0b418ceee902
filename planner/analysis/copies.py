"""Copies of inputs, step by step: where they arrive and where they are read."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from ringloom.planner.analysis.tables import Table, attended_blocks
from ringloom.planner.ir import INPUTS, Plan
from ringloom.planner.partitions import Ints


class Rows(NamedTuple):
    """Blocks [n, w] and their rank [n]; for messages, also the destination `to` [n]."""

    rank: Ints
    blocks: Ints
    to: Ints | None = None


class Copies:
    """The copies of one tensor away from its owners; step -1 is before the plan begins.

    If a rank computes STATS from an initial copy of OUT, these STATS appear, and that OUT is read,
    in the step after DOUT arrives.
    """

    def __init__(self, plan: Plan, tensor: str) -> None:
        self._plan, self._tensor, self._out = plan, tensor, None
        initial = [held for held in plan.start if held.tensors == ("OUT",)]
        if initial and tensor in ("OUT", "STATS"):
            self._out = Table(plan, "OUT")
            for held in initial:
                self._out[held.rank, held.blocks] = True

    def comes(self, number: int) -> Iterator[Rows]:
        """Yields the copies that appear in a step: received or computed in it."""
        yield from self._received(self._tensor, number)
        if self._tensor == "STATS":
            yield from self._computed(number)

    def readable(self, number: int) -> Iterator[Rows]:
        """Yields the copies readable from a step on: received in the step before, or computed."""
        yield from self._received(self._tensor, number - 1)
        if self._tensor == "STATS":
            yield from self._computed(number)

    def reads(self, number: int) -> Iterator[Rows]:
        """Yields the copies that messages and attends of a step read."""
        if 0 <= number < len(self._plan.steps):
            step, tensor = self._plan.steps[number], self._tensor
            yield from (Rows(m.src, m.blocks, m.dst) for m in step.moves if tensor in m.tensors)
            if tensor in INPUTS[self._plan.pass_]:
                yield from (Rows(a.rank, attended_blocks(a, tensor)) for a in step.attends)
        if self._tensor == "OUT":
            yield from self._computed(number)

    def _received(self, tensor: str, number: int) -> Iterator[Rows]:
        plan = self._plan
        if number == -1:
            yield from (Rows(h.rank, h.blocks) for h in plan.start if tensor in h.tensors)
        elif 0 <= number < len(plan.steps):
            moves = plan.steps[number].moves
            yield from (Rows(m.dst, m.blocks) for m in moves if tensor in m.tensors)

    def _computed(self, number: int) -> Iterator[Rows]:
        """Yields the STATS that ranks compute in a step from OUT of the same block."""
        if self._out is not None:
            for rank, blocks, _ in self._received("DOUT", number - 1):
                held = self._out[rank, blocks]
                rows = held.any(axis=1)
                yield Rows(rank[rows], np.where(held, blocks, -1)[rows])
