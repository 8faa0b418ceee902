"""The tasks of each rank in each step, with their costs and the messages for which they wait.

Messages and calls are numbered separately, in plan order. The rank's own inputs and initial copies
need no wait.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ringloom.simulator.costs.prices import Costs
from ringloom.simulator.engines.rounds import Calls, Messages, Rounds
from ringloom.simulator.timeline import Floats

Needs = tuple[int, ...]  # numbers of messages


@dataclass(slots=True)
class RankStep:
    """The tasks of one rank in one step, as numbers in plan order."""

    number: int
    sends: list[int] = field(default_factory=list)
    receives: list[int] = field(default_factory=list)
    calls: list[int] = field(default_factory=list)
    merges: list[int] = field(default_factory=list)  # arrivals to merge or unpack


class Tasks:
    """All rows of a plan, and the steps in which each rank has tasks.

    `rounds` are the rows of each step; `speed` [ranks] multiplies the ranks' rates.
    """

    def __init__(self, costs: Costs, speed: Floats) -> None:
        self.rounds = list(Rounds(costs, speed))
        sent = [part for messages, _ in self.rounds for part in messages]
        attends = [part for _, calls in self.rounds for part in calls]
        # For each message: both ends, bytes, bytes on the wire, seconds of merging, and the
        # messages that its source must have received.
        self.src: list[int] = _column(part.node.src for part in sent)
        self.dst: list[int] = _column(part.node.dst for part in sent)
        self.size: list[int] = _column(part.size for part in sent)
        self.wire: list[float] = _column(part.wire for part in sent)
        self.merging: list[float] = _column(part.merging for part in sent)
        self.needs = [needs for part in sent for needs in _needs(part)]
        # For each call: seconds, seconds of adding the results, and the messages it needs.
        self.seconds: list[float] = _column(part.seconds for part in attends)
        self.adding: list[float] = _column(part.adding for part in attends)
        self.reads = [needs for part in attends for needs in _needs(part)]
        self.steps = [list[RankStep]() for _ in range(costs.plan.ranks)]
        for step, (messages, calls) in enumerate(self.rounds):
            self._add(step, messages, calls)

    def _add(self, step: int, messages: list[Messages], calls: list[Calls]) -> None:
        for sent in messages:
            for number in range(sent.rows.start, sent.rows.stop):
                receiver = self._rank_step(self.dst[number], step)
                receiver.receives.append(number)
                if sent.joins:
                    receiver.merges.append(number)
                self._rank_step(self.src[number], step).sends.append(number)
        for part in calls:
            for number, rank in enumerate(part.node.rank.tolist(), part.rows.start):
                self._rank_step(rank, step).calls.append(number)

    def _rank_step(self, rank: int, step: int) -> RankStep:
        steps = self.steps[rank]
        if not steps or steps[-1].number != step:
            steps.append(RankStep(step))
        return steps[-1]


def _column(parts: Iterable[NDArray[Any]]) -> list[Any]:
    return [*chain.from_iterable(part.tolist() for part in parts)]


def _needs(part: Messages | Calls) -> list[Needs]:
    """Returns the messages for which each row waits, in plan order."""
    table = np.concatenate([np.empty((len(part.node), 0), np.int32), *part.needs], axis=1)
    return [tuple(sorted({n - 1 for n in row if n})) for row in table.tolist()]
