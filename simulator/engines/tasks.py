"""A plan row by row: what each rank does in each step, what each row takes and what it waits for.

Rows are numbered in plan order, messages and calls apart. A row waits for messages by number;
what is at home or held from the start is waited for by nobody. Which accumulators lie where does
not depend on the clock, so what merging costs is known beforehand.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from planner.analysis.liveness import readable
from planner.errors import PlanError
from planner.ir import READS, TENSORS, Attend, Held, Move, Plan
from planner.partitions import Ints
from simulator.costs import Costs
from simulator.engines.accumulators import Accumulators
from simulator.engines.cells import Cells
from simulator.engines.rounds import Where, attend_rounds, move_rounds, where

AT_HOME, NOWHERE = -1, -2
Needs = tuple[int, ...]  # numbers of messages
Ids = NDArray[np.int64]


@dataclass(slots=True)
class Messages:
    """Every message in plan order."""

    step: list[int] = field(default_factory=list)
    src: list[int] = field(default_factory=list)
    dst: list[int] = field(default_factory=list)
    size: list[int] = field(default_factory=list)  # bytes
    needs: list[Needs] = field(default_factory=list)  # what its source must have received
    merge: list[float] = field(default_factory=list)  # seconds of merging at its destination
    parts: list[tuple[int, int, Move]] = field(default_factory=list)  # (first message, step, rows)


@dataclass(slots=True)
class Calls:
    """Every row of an attend in plan order."""

    rank: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)  # of the kernel calls
    adding: list[float] = field(default_factory=list)  # of adding the results, seconds
    needs: list[Needs] = field(default_factory=list)
    parts: list[tuple[int, int, Attend]] = field(default_factory=list)  # (first call, step, rows)


@dataclass(slots=True)
class Turn:
    """What one rank does in one step; all are numbers in plan order."""

    step: int
    sends: list[int] = field(default_factory=list)
    receives: list[int] = field(default_factory=list)
    calls: list[int] = field(default_factory=list)
    merges: list[int] = field(default_factory=list)  # accumulators that arrive


@dataclass(frozen=True, slots=True)
class Tasks:
    """All rows of a plan and, per rank, the steps in which it has anything to do."""

    messages: Messages
    calls: Calls
    turns: list[list[Turn]]


class Origins:
    """Which message brought a block of an input to a rank last, in plan order."""

    def __init__(self, plan: Plan, tensor: str) -> None:
        side = plan.side(tensor)
        self._cells = Cells(plan.ranks, len(side))
        self._numbers = np.full(self._cells.size, NOWHERE, np.int64)
        here = self._cells.of(where(side.homes), np.arange(len(side), dtype=np.int32)[:, None])
        self._numbers[here] = self._numbers[self._cells.nowhere()] = AT_HOME

    def put(self, node: Move | Held, rank: Where, numbers: Ids) -> None:
        """Each row's message, or AT_HOME, is where its blocks come from now."""
        cells = self._cells.of(rank, node.blocks).reshape(node.blocks.shape)
        row, column = np.nonzero(node.blocks >= 0)
        self._numbers[cells[row, column]] = numbers[row]

    def of(self, rank: Where, blocks: Ints) -> Ids:
        """The messages of each row's blocks: [rows, width]."""
        return self._numbers[self._cells.of(rank, blocks)].reshape(blocks.shape)


class Compiler:
    """Goes through a plan in its order; `done` holds the rows so far."""

    def __init__(self, costs: Costs) -> None:
        plan = costs.plan
        self._costs, self._held = costs, Accumulators(costs)
        travelling = {t for _, m in plan.moves() for t in m.tensors}
        travelling |= {t for held in plan.start for t in held.tensors}
        self._origins = {t: Origins(plan, t) for t in READS[plan.pass_] if t in travelling}
        for held in plan.start:
            self._bring(readable(held), held, where(held.rank), np.full(len(held), AT_HOME))
        self.done = Tasks(Messages(), Calls(), [[] for _ in range(plan.ranks)])

    def step(self, number: int, attends: Sequence[Attend], moves: Sequence[Move]) -> None:
        """All messages of a step leave before anybody attends; what arrives is merged last."""
        messages, sent = self.done.messages, len(self.done.messages.src)
        first = len(messages.parts)
        for move in (part for whole in moves for part in move_rounds(whole)):
            self._send(number, move)
        for node in (part for attend in attends for part in attend_rounds(attend)):
            self._attend(number, node)
        for _, _, move in messages.parts[first:]:
            merging = move.accumulates
            found = self._held.arrived(move, where(move.dst)) if merging else np.zeros(len(move))
            messages.merge += found.tolist()
        for message in range(sent, len(messages.src)):
            self._turn(messages.src[message], number).sends.append(message)
            self._turn(messages.dst[message], number).receives.append(message)
        for begin, _, move in messages.parts[first:]:
            for message in range(begin, begin + len(move)) if move.accumulates else ():
                self._turn(messages.dst[message], number).merges.append(message)

    def _turn(self, rank: int, step: int) -> Turn:
        turns = self.done.turns[rank]
        if not turns or turns[-1].step != step:
            turns.append(Turn(step))
        return turns[-1]

    def _send(self, step: int, move: Move) -> None:
        done, src, dst = self.done.messages, where(move.src), where(move.dst)
        first = len(done.src)
        read = [(t, move.blocks) for t in move.tensors if t in self._origins]
        done.needs += self._needs(step, move.src, src, read)
        done.parts.append((first, step, move))
        done.src += move.src.tolist()
        done.dst += move.dst.tolist()
        done.step += [step] * len(move)
        done.size += self._costs.message(step, move).tolist()
        if move.accumulates:
            self._held.leave(move, src)
        else:
            self._bring(move.tensors, move, dst, np.arange(first, first + len(move)))

    def _bring(self, tensors: Sequence[str], node: Move | Held, rank: Where, numbers: Ids) -> None:
        for tensor in tensors:
            if tensor in self._origins:
                self._origins[tensor].put(node, rank, numbers)

    def _attend(self, step: int, node: Attend) -> None:
        done, rank = self.done.calls, where(node.rank)
        sides = {"q": node.q, "kv": node.kv}
        read = [(t, sides[TENSORS[t].side]) for t in self._origins]
        first = len(done.rank)
        done.needs += self._needs(step, node.rank, rank, read)
        done.parts.append((first, step, node))
        done.rank += node.rank.tolist()
        done.seconds += self._costs.attend(node).tolist()
        done.adding += self._held.attended(node, rank).tolist()
        for call, r in enumerate(node.rank.tolist(), first):
            self._turn(r, step).calls.append(call)

    def _needs(
        self, step: int, ranks: Ints, rank: Where, read: list[tuple[str, Ints]]
    ) -> Iterator[Needs]:
        """The messages that each row waits for, in plan order; PlanError where none ever comes."""
        if not read:
            yield from [()] * len(ranks)
            return
        found = np.concatenate([self._origins[t].of(rank, blocks) for t, blocks in read], axis=1)
        if found.min(initial=AT_HOME) == NOWHERE:
            row = int(np.nonzero((found == NOWHERE).any(axis=1))[0][0])
            raise PlanError(
                f"{self._costs.plan.name}, step {step}: rank {ranks[row]} waits for a block that"
                " never comes: verify the plan first"
            )
        if found.shape[1] == 1:
            yield from [() if n < 0 else (n,) for n in found[:, 0].tolist()]
        else:
            yield from [tuple(sorted({n for n in row if n >= 0})) for row in found.tolist()]


def tasks(costs: Costs) -> Tasks:
    """Every row of a plan; raises PlanError where a block is read that never comes there."""
    compiler = Compiler(costs)
    for number, step in enumerate(costs.plan.steps):
        compiler.step(number, step.attends, step.moves)
    return compiler.done
