"""The time of every row of a plan whose messages meet nobody else's: a recurrence over the steps.

    begin[s]     = when the attends and merges of step s - 1 have ended, on each rank
    message      = offered at begin[s] of its source; it starts when its blocks are there and both
                   its sender's out-port and its receiver's in-port are free, and keeps both for
                   bytes / bandwidth; it arrives alpha later
    attend       = starts when the rank is free and its blocks have arrived; then its results are
                   added to the accumulators that are there
    arrival      = of an accumulator: merged after the attends of the step in which it was sent

Ports serve messages in plan order (step, node, row), first in first out. A rank has one pair of
ports for the links inside its node and one for those between nodes, or those of a topology on
which no two messages meet (see `simulator.links.ports`). Without overlap a message also
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
from simulator.costs import Costs, Floats
from simulator.engines.accumulators import Accumulators
from simulator.engines.copies import Copies, exposed, ready
from simulator.engines.rounds import REMEMBERED, Where, attend_rounds, move_rounds, where
from simulator.links.ports import NodePorts, Ports, Taken
from simulator.timeline import Attended, Merged, Sent, Timeline

KEPT = 1 << 22  # steps x ranks up to which every step's times are kept
Arrived = tuple[Move, Where, Where, Floats]  # a move, its sources and destinations, its arrivals


@dataclass(frozen=True, eq=False)
class Sums:
    """What each rank did altogether."""

    busy: Floats  # seconds of attends, merges and the prologue: [ranks]
    exposed: Floats  # seconds of waiting for messages that their sources had offered: [ranks]
    sent: NDArray[np.int64]  # bytes: [ranks]
    ports: Floats  # seconds that each port, or link, was taken
    messages: int


@dataclass(slots=True, eq=False)
class Way:
    """Where the rows of a move go, and the bytes that went there so far: [rows]."""

    src: Where
    dst: Where
    taken: Taken
    bytes: NDArray[np.int64]


def run(
    costs: Costs,
    *,
    overlap: bool = True,
    record: bool = False,
    ports: Ports | None = None,
    pace: Floats | None = None,
) -> tuple[Timeline, Sums]:
    """When everything happens; `record` keeps every row, for spans and traces.

    `ports` are by default those of the hardware's constants, `pace` [ranks] slows each rank. Raises
    PlanError when a block is read where it never comes, which `verify` would have said.
    """
    found = ports or NodePorts(costs.hardware, costs.plan.ranks)
    engine = Recurrence(costs, overlap, record, found, pace)
    for number, step in enumerate(costs.plan.steps):
        engine.step(number, step)
    return engine.timeline(), engine.sums()


class Recurrence:
    """The state of all ranks while the steps go by: one clock per rank, one per port."""

    def __init__(
        self, costs: Costs, overlap: bool, record: bool, ports: Ports, pace: Floats | None
    ) -> None:
        ranks = costs.plan.ranks
        self._costs, self._overlap, self._record = costs, overlap, record
        self._ports, self._pace = ports, pace
        self._copies, self._held = Copies(costs.plan), Accumulators(costs)
        self._now, self._last = self._paced(costs.prologue.copy(), slice(None)), 0.0
        self._busy, self._exposed = self._now.copy(), np.zeros(ranks)
        self._out, self._in = np.zeros(ports.out), np.zeros(ports.into)  # when they are free
        self._sending, self._receiving = np.zeros(ports.out), np.zeros(ports.into)
        self._sent = np.zeros(ranks, np.int64)
        kept = len(costs.plan.steps) if record or len(costs.plan.steps) * ranks <= KEPT else 0
        self._steps = np.empty((3, kept, ranks))  # begin, start of attends, end of attends
        self._begin, self._start, self._end = np.empty((3, ranks))
        self._ways = dict[tuple[bytes, bytes], Way]()
        self._log, self._messages = list[Attended | Sent | Merged](), 0

    def _paced(self, seconds: Floats, rank: Where) -> Floats:
        """What takes so long on the hardware as it is takes this long on these ranks."""
        return seconds if self._pace is None else seconds / self._pace[rank]

    def step(self, number: int, step: Step) -> None:
        """Offer the step's messages, attend, then merge what arrives."""
        self._begin, self._start, self._end = times = self._times_of(number)
        self._begin[:], self._start[:] = self._now, np.inf
        moves = [part for move in step.moves for part in move_rounds(move)]
        arrived = [self._send(number, move) for move in moves]
        if not self._overlap:
            self._wait_for_all(arrived)
        for node in (part for attend in step.attends for part in attend_rounds(attend)):
            self._attend(number, node)
        self._end[:] = self._now
        np.minimum(times[1], self._now, out=times[1])  # who has no attend begins none until now
        for move, src, dst, arrival in arrived:
            if move.accumulates:
                self._merge(number, move, src, dst, arrival)

    def _times_of(self, number: int) -> Floats:
        """Where the times of a step are kept: [begin, start of attends, their end; ranks]."""
        if number < self._steps.shape[1]:
            return self._steps[:, number]
        return np.empty((3, len(self._now)))

    def _send(self, number: int, move: Move) -> Arrived:
        """Arrival of each message; ports are taken in row order."""
        size, way = self._costs.message(number, move), self._way(move)
        src, dst = way.src, way.dst
        offered = self._begin[src]
        there = ready(self._copies.send(move, src))
        start = offered if there is None else np.maximum(offered, there)
        if not self._overlap:
            start = np.maximum(start, self._begin[dst])
        start, end, arrival = self._transfer(way, size, start)
        if move.accumulates:
            self._held.leave(move, src)
        else:
            self._copies.arrive(move, dst, offered, arrival)
        self._messages += len(move)
        self._last = max(self._last, self._latest(number, move.src, arrival))
        if self._record:
            self._log.append(Sent(number, move, start, end, arrival, size))
        return move, src, dst, arrival

    def _transfer(
        self, way: Way, size: NDArray[np.int64], start: Floats
    ) -> tuple[Floats, Floats, Floats]:
        """(start, end, arrival) of messages that could start then: both ports are taken."""
        out, into, bandwidth, alpha = way.taken
        way.bytes += size
        start = np.maximum(np.maximum(start, self._out[out]), self._in[into])
        self._out[out] = self._in[into] = end = start + size / bandwidth
        return start, end, end + alpha

    def _way(self, move: Move) -> Way:
        """The ports and links of a move; those of a ring are the same in every step."""
        key = move.src.tobytes(), move.dst.tobytes()
        if key not in self._ways:
            if len(self._ways) >= REMEMBERED:
                self._add_up()
            src, dst, nothing = where(move.src), where(move.dst), np.zeros(len(move), np.int64)
            self._ways[key] = Way(src, dst, self._ports.of(move, src, dst), nothing)
        return self._ways[key]

    def _add_up(self) -> None:
        """Forget all ways; what went over them is noted by rank and by port."""
        for way in self._ways.values():
            out, into, bandwidth, _ = way.taken
            self._sent[way.src] += way.bytes
            self._sending[out] += way.bytes / bandwidth
            self._receiving[into] += way.bytes / bandwidth
        self._ways.clear()

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
        seconds = self._paced(self._costs.attend(node), rank)
        adding = self._paced(self._held.attended(node, rank), rank)
        end = start + seconds
        self._start[rank] = np.minimum(self._start[rank], start)
        self._now[rank] = end + adding
        self._busy[rank] += seconds + adding
        if self._record:
            self._log.append(Attended(number, node, start, end))
            self._log.append(Merged(number, node, end, end + adding))

    def _ready(self, number: int, node: Attend, rank: Where) -> Floats:
        """When each rank is free and its inputs are there, the wait for them noted."""
        free, times = self._now[rank], self._copies.attend(node, rank)
        inputs = ready(times)
        if inputs is None or (inputs <= free).all():
            return free.copy()
        start = np.maximum(free, inputs)
        self._latest(number, node.rank, start)
        self._exposed[rank] += exposed(times, free)
        return start

    def _latest(self, number: int, rank: Ints, times: Floats) -> float:
        """The last of some times; a PlanError where a rank would wait for ever."""
        last = float(times.max())
        if last == np.inf:
            raise PlanError(
                f"{self._costs.plan.name}, step {number}: rank {rank[times.argmax()]} waits for a"
                " block that never comes: verify the plan first"
            )
        return last

    def _merge(self, number: int, move: Move, src: Where, dst: Where, arrival: Floats) -> None:
        free, seconds = self._now[dst], self._paced(self._held.arrived(move, dst), dst)
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
        self._add_up()
        ports = np.concatenate([self._sending, self._receiving])
        return Sums(self._busy, self._exposed, self._sent, ports, self._messages)
