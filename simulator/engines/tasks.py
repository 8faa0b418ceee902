"""A plan row by row: the tasks of each rank in each step, what they cost and wait for.

Rows are numbered in plan order, messages and calls apart. A row waits for messages by number, and
not for inputs of its rank or initial copies. Where accumulators lie does not depend on the clock,
so the seconds of merging are known beforehand.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from planner.analysis.messages import message_bytes
from planner.ir import Attend, Move, Step
from planner.partitions import Ints
from simulator.costs.prices import Costs
from simulator.engines.holdings import Accumulators, Origins
from simulator.engines.rounds import attend_rounds, move_rounds
from simulator.timeline import Floats

Needs = tuple[int, ...]  # numbers of messages
Part = tuple[int, int, Attend | Move]  # number of the first row, step, rows


@dataclass(slots=True)
class Messages:
    """Every message in plan order."""

    src: list[int] = field(default_factory=list)
    dst: list[int] = field(default_factory=list)
    size: list[int] = field(default_factory=list)  # bytes
    needs: list[Needs] = field(default_factory=list)  # what its source must have received
    merge: list[float] = field(default_factory=list)  # seconds of merging at its destination


@dataclass(slots=True)
class Calls:
    """Every row of an attend in plan order."""

    rank: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)  # of the kernel calls
    adding: list[float] = field(default_factory=list)  # of adding the results, seconds
    needs: list[Needs] = field(default_factory=list)


@dataclass(slots=True)
class RankStep:
    """The tasks of one rank in one step, as numbers in plan order."""

    number: int
    sends: list[int] = field(default_factory=list)
    receives: list[int] = field(default_factory=list)
    calls: list[int] = field(default_factory=list)
    merges: list[int] = field(default_factory=list)  # accumulators that arrive


class Tasks:
    """All rows of a plan and, per rank, the steps in which it has anything to do.

    `parts` are the rows by nodes, of each step its messages before its calls; `speed` [ranks] are
    factors on the ranks' rates.
    """

    def __init__(self, costs: Costs, speed: Floats) -> None:
        self._costs, self._speed = costs, speed
        self._accumulators, self._origins = Accumulators(costs), Origins(costs.plan)
        self.messages, self.calls, self.parts = Messages(), Calls(), list[Part]()
        self.steps = [list[RankStep]() for _ in range(costs.plan.ranks)]
        for number, step in enumerate(costs.plan.steps):
            self._step(number, step)
        del self._accumulators, self._origins  # ranks x blocks, which a run has no use for

    def _step(self, number: int, step: Step) -> None:
        """Add a step: all its messages leave before anybody attends; arrivals are merged last."""
        moves = list(move_rounds(step))
        firsts = [self._send(number, move) for move in moves]
        for node in attend_rounds(step):
            self._attend(number, node)
        for first, move in zip(firsts, moves, strict=True):
            merging = np.zeros(len(move))
            if move.accumulates:
                merging = self._accumulators.arrived(move) / self._speed[move.dst]
            self.messages.merge += merging.tolist()
            ends = zip(move.src.tolist(), move.dst.tolist(), strict=True)
            for message, (src, dst) in enumerate(ends, first):
                self._rank_step(src, number).sends.append(message)
                self._rank_step(dst, number).receives.append(message)
                if move.accumulates:
                    self._rank_step(dst, number).merges.append(message)

    def _rank_step(self, rank: int, step: int) -> RankStep:
        steps = self.steps[rank]
        if not steps or steps[-1].number != step:
            steps.append(RankStep(step))
        return steps[-1]

    def _send(self, step: int, move: Move) -> int:
        done, first = self.messages, len(self.messages.src)
        done.needs += _needs(len(move), self._origins.sent(move))
        self.parts.append((first, step, move))
        done.src += move.src.tolist()
        done.dst += move.dst.tolist()
        done.size += message_bytes(self._costs.plan, step, move).tolist()
        self._origins.arrive(move, first + 1)
        if move.accumulates:
            self._accumulators.leave(move)
        return first

    def _attend(self, step: int, node: Attend) -> None:
        done, first = self.calls, len(self.calls.rank)
        done.needs += _needs(len(node), self._origins.attended(node))
        self.parts.append((first, step, node))
        done.rank += node.rank.tolist()
        speed, adding = self._speed[node.rank], self._accumulators.attended(node)
        done.seconds += (self._costs.attend(node) / speed).tolist()
        done.adding += (adding / speed).tolist()
        for call, rank in enumerate(node.rank.tolist(), first):
            self._rank_step(rank, step).calls.append(call)


def _needs(rows: int, origins: Sequence[Ints]) -> list[Needs]:
    """Return the messages that each row waits for, in plan order."""
    table = np.concatenate([np.empty((rows, 0), np.int32), *origins], axis=1)
    return [tuple(sorted({n - 1 for n in row if n})) for row in table.tolist()]
