"""The time of every row of a plan whose messages share no links: a recurrence over the steps.

    begin[s]     the end of the attends and merges of step s - 1, on each rank
    message      is offered at begin[s] of its source; starts when its blocks are at the source and
                 the sender's out-port and the receiver's in-port are free; occupies both until it
                 arrives, alpha + bytes / bandwidth later
    attend       starts when the rank is free and its blocks have arrived; then its results are
                 added to the accumulators on its rank
    arrival      an accumulator is merged after the attends of the step in which it was sent, and
                 the heads of an all-to-all are unpacked at that time
    share        transfers slow down compute on both ranks: the first attend of the step in which
                 they are sent takes share x bytes / bandwidth longer

Ports serve messages in plan order (step, node, row), first in first out. A rank has one pair of
ports for the links inside its node and one for those between nodes, or the ports of a topology in
which no messages share a link (see `ringloom.simulator.network.ports`). Without overlap a message
also waits until its receiver starts the step, and the attends of a step wait for every message of
the step that the rank sends or receives, so a rank never transfers while it attends. All times are
maxima and sums of earlier times, so a shorter row never makes a plan slower. Each step takes a few
numpy calls over all ranks.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ringloom.planner.columns import as_index
from ringloom.planner.ir import Index, Plan
from ringloom.simulator.costs.prices import Costs
from ringloom.simulator.engines.rounds import Calls, Messages, Rounds
from ringloom.simulator.network.ports import Ports
from ringloom.simulator.timeline import Floats, Kind, Rows, Timeline, Wait, work

KEPT = 1 << 22  # steps x ranks up to which the times of every step are kept


@dataclass(frozen=True, eq=False)
class Sums:
    """Totals of each rank over a run, and of each port or link."""

    busy: Floats  # seconds of attends, merges and the prologue: [ranks]
    exposed: Floats  # seconds of waiting for messages that were already sent: [ranks]
    sent: NDArray[np.int64]  # bytes: [ranks]
    ports: Floats  # seconds for which each port, or link, was busy
    messages: int


def run(
    costs: Costs, ports: Ports, speed: Floats, *, overlap: bool = True, record: bool = False
) -> tuple[Timeline, Sums]:
    """Times all rows; `speed` [ranks] multiplies the ranks' rates; `record` keeps every row."""
    engine = Recurrence(costs.plan, ports, costs.prologue / speed, overlap, record)
    for number, (messages, calls) in enumerate(Rounds(costs, speed)):
        engine.step(number, messages, calls)
    return engine.timeline(), engine.sums()


class Recurrence:
    """The state of all ranks: one clock per rank, one per port."""

    def __init__(
        self, plan: Plan, ports: Ports, prologue: Floats, overlap: bool, record: bool
    ) -> None:
        ranks, steps = plan.ranks, len(plan.steps)
        self._plan, self._overlap, self._record = plan, overlap, record
        # By number of the message that delivered an input; 0 for inputs without a message.
        self._messages = sum(len(move) for _, move in plan.moves())
        self._offered, self._arrived = np.zeros((2, 1 + self._messages))
        self._ports, self._now, self._last = ports, prologue, 0.0
        self._busy, self._exposed = prologue.copy(), np.zeros(ranks)
        self._out, self._in = np.zeros(ports.out), np.zeros(ports.into)  # times when they are free
        self._sending, self._receiving = np.zeros(ports.out), np.zeros(ports.into)
        self._sent, self._lost = np.zeros(ranks, np.int64), np.zeros(ranks)
        self._keeps = record or steps * ranks <= KEPT
        # Start of the step, start and end of its attends; of the current step or of all steps.
        self._steps = np.empty((3, steps if self._keeps else 1, ranks))
        self._log, self._waits = list[Rows](), list[Wait]()

    def step(self, number: int, messages: list[Messages], calls: list[Calls]) -> None:
        """Sends the messages of a step, attends, then merges arrivals."""
        self._begin, self._start, self._end = times = self._steps[:, number * self._keeps]
        self._begin[:], self._start[:], self._lost[:] = self._now, np.inf, 0.0
        arrived = [(sent, self._send(number, sent)) for sent in messages]
        if not self._overlap:
            self._wait_for_all(number, arrived)
        for call in calls:
            self._attend(number, call)
        self._end[:] = self._now
        np.minimum(times[1], self._now, out=times[1])  # for ranks without attends
        for sent, arrival in arrived:
            if sent.joins:
                self._merge(number, sent, arrival)

    def _send(self, number: int, sent: Messages) -> Floats:
        """Sends messages through ports in row order; returns the arrival of each."""
        move, size = sent.node, sent.size
        start = offered = self._begin.take(move.src)
        for messages in sent.needs:
            start = np.maximum(start, self._arrived.take(messages.T).max(axis=0))
        if not self._overlap:
            start = np.maximum(start, self._begin.take(move.dst))
        start, end, arrival = self._transfer(sent, start)
        if not move.accumulates:
            own = slice(1 + sent.rows.start, 1 + sent.rows.stop)
            self._offered[own], self._arrived[own] = offered, arrival
        self._last = max(self._last, float(arrival.max()))
        if self._record:
            self._log.append(Rows("message", number, move, start, end, arrival, size))
        return arrival

    def _transfer(self, sent: Messages, start: Floats) -> tuple[Floats, Floats, Floats]:
        """Occupies the ports of messages ready at `start`; returns (start, end, arrival)."""
        move = sent.node
        out, into, bandwidth, alpha, share = self._ports.of(move)
        seconds, src, dst = sent.wire / bandwidth, as_index(move.src), as_index(move.dst)
        if self._overlap:
            np.add.at(self._lost, src, share * seconds)
            np.add.at(self._lost, dst, share * seconds)
        start = np.maximum(np.maximum(start, self._out[out]), self._in[into])
        end = start + seconds
        self._out[out] = self._in[into] = end + alpha
        np.add.at(self._sent, src, sent.size)
        np.add.at(self._sending, out, seconds)
        np.add.at(self._receiving, into, seconds)
        return start, end, end + alpha

    def _wait_for_all(self, number: int, arrived: list[tuple[Messages, Floats]]) -> None:
        """Delays compute on every rank until its messages of the step have arrived."""
        begin = self._begin
        waited = np.zeros_like(begin)
        for sent, arrival in arrived:
            src, dst = as_index(sent.node.src), as_index(sent.node.dst)
            for rank in (src, dst):
                since = np.maximum(begin[rank], begin[src])
                waited[rank] = np.maximum(waited[rank], arrival - since)
                self._now[rank] = np.maximum(self._now[rank], arrival)
        self._wait(number, np.arange(len(waited)), self._now, waited)

    def _wait(self, number: int, rank: Index, until: Floats, seconds: Floats) -> None:
        """Adds waits for messages that were already sent to `exposed`, and logs them."""
        np.add.at(self._exposed, rank, seconds)
        if self._record:
            rows = zip(*(x.tolist() for x in (rank, until - seconds, until)), strict=True)
            self._waits += [Wait(number, *row) for row in rows if row[1] < row[2]]

    def _attend(self, number: int, call: Calls) -> None:
        node, adding, rank = call.node, call.adding, as_index(call.node.rank)
        start = self._ready(number, call, rank)
        seconds = call.seconds + self._lost[rank]
        self._lost[rank] = 0.0
        end = start + seconds
        np.minimum.at(self._start, rank, start)
        self._now[rank] = end + adding
        np.add.at(self._busy, rank, seconds + adding)
        if self._record:
            self._log.append(work("attend", number, node, start, end))
            self._log.append(work("add", number, node, end, end + adding))

    def _ready(self, number: int, call: Calls, rank: Index) -> Floats:
        """Returns the time when each rank is free and has its inputs; records the wait for them."""
        free = ready = self._now[rank]
        longest = np.zeros(len(rank))  # the longest wait for a message that was already sent
        for messages in call.needs:
            arrived, offered = (times.take(messages.T) for times in (self._arrived, self._offered))
            ready = np.maximum(ready, arrived.max(axis=0))
            np.maximum(longest, (arrived - np.maximum(offered, free)).max(axis=0), out=longest)
        self._wait(number, rank, ready, longest)
        return ready

    def _merge(self, number: int, sent: Messages, arrival: Floats) -> None:
        move, seconds, dst = sent.node, sent.merging, as_index(sent.node.dst)
        free = self._now[dst]
        start = np.maximum(free, arrival)
        since = np.maximum(free, self._begin.take(move.src))
        self._wait(number, dst, arrival, np.maximum(arrival - since, 0.0))
        self._now[dst] = start + seconds
        np.add.at(self._busy, dst, seconds)
        if self._record:
            kind: Kind = "unpack" if sent.unpacked else "merge"
            self._log.append(work(kind, number, move, start, start + seconds))

    def timeline(self) -> Timeline:
        """Returns the timeline of the steps so far."""
        end = max(float(self._now.max()), self._last)
        rows, steps = tuple(self._log) if self._record else None, self._steps
        waits = tuple(self._waits)
        return Timeline(self._plan, end, self._now, steps if self._keeps else None, rows, waits)

    def sums(self) -> Sums:
        """Returns the totals of the steps so far."""
        ports = np.concatenate([self._sending, self._receiving])
        return Sums(self._busy, self._exposed, self._sent, ports, self._messages)
