"""The discrete-event engine: the time of every row of a plan whose messages may share links.

A rank is a generator. In each step it sends its messages, attends after its blocks have arrived,
and merges arrivals, in the same order as in the recurrence. `transfers` moves its messages. If no
link is shared and the scenario only changes speeds, all times equal those of the recurrence.
"""

from collections.abc import Iterator

import numpy as np

from ringloom.planner.errors import PlanError
from ringloom.simulator.costs.prices import Costs
from ringloom.simulator.engines.buffers import Buffers
from ringloom.simulator.engines.events import Clock
from ringloom.simulator.engines.recurrence import KEPT, Sums
from ringloom.simulator.engines.tasks import RankStep, Tasks
from ringloom.simulator.engines.transfers import NEVER, Transfers
from ringloom.simulator.network.routes import Traffic
from ringloom.simulator.scenario import Scenario
from ringloom.simulator.timeline import Floats, Kind, Rows, Timeline, Wait, block_names, work

Want = int | float  # a message by number, or a time
Mark = tuple[int, float, float, float, float]  # step, its start, start and end of attends, its end


def run_events(
    costs: Costs, traffic: Traffic, scenario: Scenario, *, record: bool = False
) -> tuple[Timeline, Sums]:
    """Times all rows; `record` keeps every row, for spans and traces.

    Raises PlanError with the rank, step and block if ranks with full buffers wait for each other.
    """
    engine = DiscreteEvent(costs, traffic, scenario, record)
    engine.run()
    return engine.timeline(), engine.sums()


class DiscreteEvent:
    """The state of all ranks while the clock runs."""

    def __init__(self, costs: Costs, traffic: Traffic, scenario: Scenario, record: bool) -> None:
        plan = self._plan = costs.plan
        self._traffic, self._scenario, self._record = traffic, scenario, record
        speed = scenario.speed(plan.ranks)
        clock, rows = self._clock, self._rows = Clock(), Tasks(costs, speed)
        self._prologue: list[float] = (costs.prologue / speed).tolist()
        room = scenario.room(plan)
        self._buffers = Buffers(plan.ranks, rows, room) if room is not None else None
        wake, buffers = self._resume, self._buffers
        self._transfers = Transfers(clock, rows, traffic, scenario, wake, buffers)
        calls, messages = len(rows.seconds), len(rows.src)
        self._call_start, self._call_end = [0.0] * calls, [0.0] * calls
        self._offered, self._merge_start = [NEVER] * messages, [0.0] * messages
        self._busy, self._finish = self._prologue.copy(), self._prologue.copy()
        self._exposed, self._done = [0.0] * plan.ranks, [False] * plan.ranks
        self._keeps = record or len(plan.steps) * plan.ranks <= KEPT
        self._waits = list[Wait]()
        self._marks = [list[Mark]() for _ in range(plan.ranks)]
        self._lives = [self._life(rank, steps) for rank, steps in enumerate(self._rows.steps)]

    def run(self) -> None:
        """Runs the plan; raises PlanError if it gets stuck."""
        for rank, begin in enumerate(self._prologue):
            self._clock.at(begin, self._resume, rank)
        self._clock.run()
        if not all(self._done) or NEVER in self._transfers.arrived:
            raise PlanError(self._deadlock())

    def _resume(self, rank: int) -> None:
        """Runs a rank until it has to wait."""
        for want in self._lives[rank]:
            if type(want) is float:
                self._clock.at(want, self._resume, rank)
            elif type(want) is int:
                self._transfers.waiting[want].append(rank)
            return
        self._done[rank] = True

    def _life(self, rank: int, steps: list[RankStep]) -> Iterator[Want]:
        clock = self._clock
        for step in steps:
            begin = clock.now
            for message in step.sends:
                self._offered[message] = begin
            if not self._scenario.late or not step.calls:
                self._launch(step)
            if not self._scenario.overlap:
                yield from self._wait_for(rank, step, (*step.sends, *step.receives))
            lost = self._transfers.lost_compute(step) if self._scenario.overlap else 0.0
            for call in step.calls:
                yield from self._attend(rank, step, call, lost)
                lost = 0.0
            end = clock.now
            first = self._call_start[step.calls[0]] if step.calls else end
            for message in step.merges:
                yield from self._merge(rank, step, message)
            self._finish[rank] = clock.now
            if self._keeps:
                self._marks[rank].append((step.number, begin, first, end, clock.now))

    def _launch(self, step: RankStep) -> None:
        for message in step.sends:
            self._transfers.count_down(message)
        if self._scenario.late or not self._scenario.overlap:
            for message in step.receives:
                self._transfers.count_down(message)

    def _attend(self, rank: int, step: RankStep, call: int, lost: float) -> Iterator[Want]:
        rows, clock = self._rows, self._clock
        if needs := rows.reads[call]:
            yield from self._wait_for(rank, step, needs)
        start = self._call_start[call] = clock.now
        end = start + rows.seconds[call] + lost
        if self._buffers or self._scenario.late:
            yield end
        self._call_end[call] = end
        if self._buffers:
            self._buffers.read(needs)
            self._transfers.try_waiting(rank)
        if self._scenario.late and call == step.calls[0]:
            self._launch(step)
        now = end + rows.adding[call]
        self._busy[rank] += now - start
        if now > clock.now:
            yield now

    def _wait_for(self, rank: int, step: RankStep, needs: tuple[int, ...]) -> Iterator[Want]:
        """Waits for messages, and adds the part of the wait after they were sent to `exposed`."""
        arrived, offered, free, wait = self._transfers.arrived, self._offered, self._clock.now, 0.0
        for message in needs:
            if arrived[message] == NEVER:
                yield message
        for message in needs:
            since = offered[message]
            wait = max(wait, arrived[message] - (since if since > free else free))
        self._exposed[rank] += wait
        if self._record and wait:
            now = self._clock.now
            self._waits.append(Wait(step.number, rank, now - wait, now))

    def _merge(self, rank: int, step: RankStep, message: int) -> Iterator[Want]:
        yield from self._wait_for(rank, step, (message,))
        start = self._merge_start[message] = self._clock.now
        seconds = self._rows.merging[message]
        self._busy[rank] += seconds
        if seconds:
            yield start + seconds

    def _deadlock(self) -> str:
        """Describes the first message without a receive buffer; others wait for earlier rows."""
        rows, message = self._rows, self._transfers.first_without_slot()
        sent = ((step, part) for step, (messages, _) in enumerate(rows.rounds) for part in messages)
        step, part = next((n, part) for n, part in sent if message < part.rows.stop)
        block = block_names(part.node)[message - part.rows.start]
        ends = f"rank {rows.src[message]} cannot send {block} to rank {rows.dst[message]}"
        return f"stuck in step {step}: {ends}, which never frees a receive buffer"

    def timeline(self) -> Timeline:
        """Returns the times of all rows."""
        end = max([*self._finish, *self._transfers.arrived])
        rows = tuple(self._log()) if self._record else None
        finish, steps = np.array(self._finish), self._steps() if self._keeps else None
        return Timeline(self._plan, end, finish, steps, rows, tuple(self._waits))

    def _steps(self) -> Floats:
        """Returns the times of each step; a step in which a rank has no tasks takes no time."""
        times = np.full((3, len(self._plan.steps), self._plan.ranks), np.nan)
        after = np.full(times.shape[1:], np.nan)
        for rank, marks in enumerate(self._marks):
            for step, *starts, end in marks:
                times[:, step, rank], after[step, rank] = starts, end
        now = np.array(self._prologue)
        for step, idle in enumerate(np.isnan(after)):
            times[:, step, idle] = now[idle]
            now = np.where(idle, now, after[step])
        return times

    def _log(self) -> Iterator[Rows]:
        """Yields every row in the same order as the recurrence."""
        transfers = self._transfers
        times = transfers.start, transfers.end, transfers.arrived
        for step, (messages, calls) in enumerate(self._rows.rounds):
            for sent in messages:
                start, end, arrived = (np.array(column[sent.rows]) for column in times)
                yield Rows("message", step, sent.node, start, end, arrived, sent.size)
            for part in calls:
                start, end = (np.array(x[part.rows]) for x in (self._call_start, self._call_end))
                yield work("attend", step, part.node, start, end)
                yield work("add", step, part.node, end, end + part.adding)
            for sent in messages:
                if sent.joins:
                    start = np.array(self._merge_start[sent.rows])
                    kind: Kind = "unpack" if sent.unpacked else "merge"
                    yield work(kind, step, sent.node, start, start + sent.merging)

    def sums(self) -> Sums:
        """Returns the totals of each rank; `ports` are links."""
        rows, sent = self._rows, np.zeros(self._plan.ranks, np.int64)
        np.add.at(sent, np.array(rows.src, np.intp), np.array(rows.size, np.int64))
        ports = self._traffic.seconds(rows.src, rows.dst, rows.wire)
        busy, exposed = np.array(self._busy), np.array(self._exposed)
        return Sums(busy, exposed, sent, ports, len(rows.src))
