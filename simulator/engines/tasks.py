"""A plan row by row: the tasks of each rank in each step, what they cost and wait for.

Rows are numbered in plan order, messages and calls apart. A row waits for messages by number, and
not for inputs of its rank or initial copies. Where accumulators lie does not depend on the clock,
so the seconds of merging are known beforehand.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from planner.ir import Attend, Move
from planner.partitions import Ints
from simulator.costs.prices import Costs
from simulator.engines import rounds
from simulator.engines.rounds import Rounds
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
        self.messages, self.calls, self.parts = Messages(), Calls(), list[Part]()
        self.steps = [list[RankStep]() for _ in range(costs.plan.ranks)]
        for number, (messages, calls) in enumerate(Rounds(costs, speed)):
            for sent in messages:
                self._send(number, sent)
            for call in calls:
                self._attend(number, call)

    def _rank_step(self, rank: int, step: int) -> RankStep:
        steps = self.steps[rank]
        if not steps or steps[-1].number != step:
            steps.append(RankStep(step))
        return steps[-1]

    def _send(self, step: int, sent: rounds.Messages) -> None:
        done, move, first = self.messages, sent.node, len(self.messages.src)
        self.parts.append((first, step, move))
        done.src += move.src.tolist()
        done.dst += move.dst.tolist()
        done.size += sent.size.tolist()
        done.needs += _needs(len(move), sent.needs)
        done.merge += sent.merging.tolist()
        for message in range(first, len(done.src)):
            receiver = self._rank_step(done.dst[message], step)
            self._rank_step(done.src[message], step).sends.append(message)
            receiver.receives.append(message)
            if move.accumulates:
                receiver.merges.append(message)

    def _attend(self, step: int, call: rounds.Calls) -> None:
        done, ranks, first = self.calls, call.node.rank.tolist(), len(self.calls.rank)
        self.parts.append((first, step, call.node))
        done.rank += ranks
        done.seconds += call.seconds.tolist()
        done.adding += call.adding.tolist()
        done.needs += _needs(len(ranks), call.needs)
        for number, rank in enumerate(ranks, first):
            self._rank_step(rank, step).calls.append(number)


def _needs(rows: int, origins: Sequence[Ints]) -> list[Needs]:
    """Return the messages that each row waits for, in plan order."""
    table = np.concatenate([np.empty((rows, 0), np.int32), *origins], axis=1)
    return [tuple(sorted({n - 1 for n in row if n})) for row in table.tolist()]
