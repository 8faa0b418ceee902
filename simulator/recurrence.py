"""The time of every row of a plan whose messages meet nobody else's: a recurrence over the steps.

    begin[s]     = when the attends and merges of step s - 1 have ended, on each rank
    message      = offered at begin[s] of its source; it starts when its blocks are there and both
                   its sender's out-port and its receiver's in-port are free, and keeps both for
                   bytes / bandwidth; it arrives alpha later
    attend       = starts when the rank is free and its blocks have arrived; then its results are
                   added to the accumulators that are there
    arrival      = of an accumulator: merged after the attends of the step in which it was sent

Ports serve messages in plan order (step, node, row), first in first out. A rank has one pair of
ports for the links inside its node and one for those between nodes. Without overlap a message also
waits for its receiver to begin the step, and the attends of a step for every message of that step
that the rank sends or receives: nothing travels to or from a rank while it attends. All times are
maxima and sums of earlier ones, so no shorter row can make a plan slower. Each step is a few numpy
calls over all ranks.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.errors import PlanError
from planner.ir import Attend, Move, Step
from planner.partitions import Ints
from simulator.accumulators import Accumulators
from simulator.copies import Copies
from simulator.costs import Costs, Floats
from simulator.rounds import Where, attend_rounds, move_rounds, where
from simulator.timeline import Attended, Merged, Sent, Timeline

KEPT = 1 << 22  # steps x ranks up to which every step's times are kept
Arrived = tuple[Move, Where, Where, Floats]  # a move, its sources and destinations, its arrivals


@dataclass(frozen=True, eq=False)
class Sums:
    """What each rank did altogether."""

    busy: Floats  # seconds of attends, merges and the prologue: [ranks]
    exposed: Floats  # seconds of waiting for messages that their sources had offered: [ranks]
    sent: NDArray[np.int64]  # bytes: [ranks]
    ports: Floats  # seconds that each port was taken: [out and in, inside and between nodes, ranks]
    messages: int


def run(costs: Costs, *, overlap: bool = True, record: bool = False) -> tuple[Timeline, Sums]:
    """When everything happens; `record` keeps every row, for spans and traces.

    Raises PlanError when a block is read where it never comes, which `verify` would have said.
    """
    engine = Recurrence(costs, overlap, record)
    for number, step in enumerate(costs.plan.steps):
        engine.step(number, step)
    return engine.timeline(), engine.sums()


class Recurrence:
    """The state of all ranks while the steps go by: one clock per rank, one per port."""

    def __init__(self, costs: Costs, overlap: bool, record: bool) -> None:
        ranks, links = costs.plan.ranks, costs.hardware.links
        self._costs, self._overlap, self._record = costs, overlap, record
        self._copies, self._held = Copies(costs.plan), Accumulators(costs)
        self._now, self._last = costs.prologue.copy(), 0.0
        self._busy, self._exposed = costs.prologue.copy(), np.zeros(ranks)
        self._out, self._in = np.zeros((2, 2 * ranks))  # ports inside the node, then between
        self._sent, self._received = np.zeros((2, 2 * ranks), np.int64)
        self._node = np.arange(ranks) // costs.hardware.ranks_per_node
        self._alpha = np.array([link.alpha for link in links])
        self._bandwidth = np.array([link.bandwidth for link in links])
        kept = len(costs.plan.steps) if record or len(costs.plan.steps) * ranks <= KEPT else 0
        self._steps = np.empty((3, kept, ranks))  # begin, start of attends, end of attends
        self._begin = self._start = self._now
        self._log, self._messages = list[Attended | Sent | Merged](), 0

    def step(self, number: int, step: Step) -> None:
        """Offer the step's messages, attend, then merge what arrives."""
        self._begin, self._start = self._now.copy(), np.full_like(self._now, np.nan)
        moves = [part for move in step.moves for part in move_rounds(move)]
        arrived = [self._send(number, move) for move in moves]
        if not self._overlap:
            self._wait_for_all(arrived)
        for node in (part for attend in step.attends for part in attend_rounds(attend)):
            self._attend(number, node)
        if number < self._steps.shape[1]:
            start = np.where(np.isnan(self._start), self._now, self._start)
            self._steps[:, number] = self._begin, start, self._now
        for move, src, dst, arrival in arrived:
            if move.accumulates:
                self._merge(number, move, src, dst, arrival)

    def _send(self, number: int, move: Move) -> Arrived:
        """Arrival of each message; ports are taken in row order."""
        size, src, dst = self._costs.message(move), where(move.src), where(move.dst)
        offered = self._begin[src]
        ready = self._copies.send(move, src)
        start = offered if ready is None else self._later(number, move.src, offered, ready)
        if not self._overlap:
            start = np.maximum(start, self._begin[dst])
        start, end, arrival = self._transfer(move, size, start)
        if move.accumulates:
            self._held.leave(move, src)
        else:
            self._copies.arrive(move, dst, offered, arrival)
        self._messages += len(move)
        self._last = max(self._last, float(arrival.max()))
        if self._record:
            self._log.append(Sent(number, move, start, end, arrival, size))
        return move, src, dst, arrival

    def _transfer(
        self, move: Move, size: NDArray[np.int64], start: Floats
    ) -> tuple[Floats, Floats, Floats]:
        """(start, end, arrival) of messages that could start then: both ports are taken."""
        link = (self._node[move.src] != self._node[move.dst]).astype(np.intp)
        out, in_ = link * len(self._now) + move.src, link * len(self._now) + move.dst
        start = np.maximum(np.maximum(start, self._out[out]), self._in[in_])
        self._out[out] = self._in[in_] = end = start + size / self._bandwidth[link]
        self._sent[out] += size
        self._received[in_] += size
        return start, end, end + self._alpha[link]

    def _wait_for_all(self, arrived: list[Arrived]) -> None:
        """Nobody computes in a step before its own messages of the step are through."""
        began = self._begin
        waited = np.zeros_like(began)
        for _, src, dst, arrival in arrived:
            for rank in (src, dst):
                since = np.maximum(began[rank], began[src])
                waited[rank] = np.maximum(waited[rank], arrival - since)
                self._now[rank] = np.maximum(self._now[rank], arrival)
        self._exposed += waited

    def _attend(self, number: int, node: Attend) -> None:
        rank = where(node.rank)
        start = self._ready(number, node, rank)
        seconds, adding = self._costs.attend(node), self._held.attended(node, rank)
        end = start + seconds
        self._start[rank] = np.fmin(self._start[rank], start)
        self._now[rank] = end + adding
        self._busy[rank] += seconds + adding
        if self._record:
            self._log.append(Attended(number, node, start, end))
            self._log.append(Merged(number, node, end, end + adding))

    def _ready(self, number: int, node: Attend, rank: Where) -> Floats:
        """When each rank is free and its inputs are there, the wait for them noted."""
        free, inputs = self._now[rank], self._copies.attend(node, rank)
        if inputs is None or (inputs <= free).all():
            return free.copy()
        start = self._later(number, node.rank, free, inputs)
        self._exposed[rank] += self._copies.exposed(node, rank, free)
        return start

    def _later(self, number: int, rank: Ints, free: Floats, ready: Floats) -> Floats:
        """When both are true; a PlanError where a rank would wait for ever."""
        start = np.maximum(free, ready)
        if np.isinf(start.max()):
            raise PlanError(
                f"{self._costs.plan.name}, step {number}: rank {rank[start.argmax()]} waits for a"
                " block that never comes: verify the plan first"
            )
        return start

    def _merge(self, number: int, move: Move, src: Where, dst: Where, arrival: Floats) -> None:
        free, seconds = self._now[dst], self._held.arrived(move, dst)
        start = np.maximum(free, arrival)
        since = np.maximum(free, self._begin[src])
        self._exposed[dst] += np.maximum(arrival - since, 0.0)
        self._now[dst] = start + seconds
        self._busy[dst] += seconds
        if self._record:
            self._log.append(Merged(number, move, start, start + seconds))

    def timeline(self) -> Timeline:
        """When everything happened so far."""
        plan, end = self._costs.plan, max(float(self._now.max()), self._last)
        rows = tuple(self._log) if self._record else None
        steps = self._steps if self._steps.shape[1] == len(plan.steps) else None
        return Timeline(plan, end, self._now, steps, rows)

    def sums(self) -> Sums:
        """What everybody did so far."""
        both = np.stack([self._sent, self._received]).reshape(2, 2, -1)
        ports = both / self._bandwidth[None, :, None]
        return Sums(self._busy, self._exposed, both[0].sum(axis=0), ports, self._messages)
