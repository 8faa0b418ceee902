"""record(plan, q, k, v)   run a plan and return the timeline of the run.

The timeline has the form of predicted ones, so it can be drawn, counted and written in the same
way, and a report lays the one over the other.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ringloom.planner.analysis.messages import message_bytes
from ringloom.planner.errors import RingloomError
from ringloom.planner.ir import Plan
from ringloom.planner.partitions import Ints
from ringloom.planner.plans import AnyPlans
from ringloom.runtimes import backends
from ringloom.runtimes.recording.events import Events, Kind
from ringloom.simulator.chrome_trace import save_trace, trace
from ringloom.simulator.timeline import Floats, Rows, Run, Timeline, work


class Recording(Run):
    """A recorded run of one pass, or of a forward and a backward pass in turn, in seconds.

    `hardware` is the backend. Of a pair, `passes` holds both recordings, and the `makespan` of the
    first is the time after which the second began: some ranks may still have been in the first. A
    single pass has its `timeline` instead.
    """

    def __repr__(self) -> str:
        where = f"{self.ranks} ranks of {self.hardware}"
        return f"<Recording {self.name}, {where}: {self.makespan:.4g} s, {self.messages} messages>"

    def save(self, path: str | Path) -> Path:
        """Write it as a Chrome trace, .json or .json.gz; raises RingloomError where that fails."""
        return save_trace(trace(self), path)


def record(
    plan: AnyPlans,
    q: Any,
    k: Any,
    v: Any,
    *,
    dout: Any = None,
    sinks: Any = None,
    backend: str = "torch",
    **limits: float,
) -> tuple[Any, Recording]:
    """Run a plan and record it; returns the results of `run`, and the recording.

    torch: the program runs twice in processes of its own, and the second run is recorded; numpy:
    virtual ranks take turns on one processor. Its `timeout` in seconds may be given for torch.
    Raises RingloomError for a backend whose runs cannot be recorded, and as `run` does.
    """
    given = (q, k, v) if dout is None else (q, k, v, dout)
    results, passes = backends.record(plan, *given, sinks=sinks, backend=backend, **limits)
    first, *rest = recordings = [_one(one, events, backend) for one, events in passes]
    if not rest:
        return results, first
    (second,) = rest
    begins = [min(events.values())[0] for _, events in passes if events]
    if len(begins) == 2:
        first = replace(first, makespan=begins[1] - begins[0])
    whole = replace(
        first,
        makespan=max(recordings[0].makespan, first.makespan + second.makespan),
        messages=first.messages + second.messages,
        timeline=None,
        passes=(first, second),
    )
    return results, whole


def _one(plan: Plan, events: Events, backend: str) -> Recording:
    times = timeline(plan, events)
    return Recording(
        name=plan.name,
        hardware=backend,
        ranks=plan.ranks,
        makespan=times.end,
        messages=sum(len(move) for _, move in plan.moves()),
        timeline=times,
    )


def timeline(plan: Plan, events: Events) -> Timeline:
    """Returns the timeline of a run, row by row of the plan, from the first event on.

    Raises RingloomError unless every attend and both ends of every message have an event.
    """
    begin, _ = min(events.values(), default=(0.0, 0.0))
    events = {key: (start - begin, end - begin) for key, (start, end) in events.items()}
    finish = np.zeros(plan.ranks)
    for (_, rank, _, _), (_, end) in events.items():
        finish[rank] = max(finish[rank], end)
    rows = tuple(_rows(plan, events))
    return Timeline(plan, float(finish.max(initial=0.0)), finish, steps=None, rows=rows)


def _rows(plan: Plan, events: Events) -> Iterator[Rows]:
    """Yields the rows of every node, in plan order."""
    for step, nodes in enumerate(plan.steps):

        def look(kind: Kind, ranks: Ints, first: int, step: int = step) -> Floats:
            rows = [
                _time(plan, events, (kind, rank, step, number))
                for number, rank in enumerate(ranks.tolist(), first)
            ]
            return np.array(rows).reshape(-1, 2)

        first = 0
        for move in nodes.moves:
            sent, came = look("send", move.src, first), look("receive", move.dst, first)
            # The wire is free once either end knows that all has come through.
            end = np.minimum(sent[:, 1], came[:, 1])
            start = np.minimum(np.maximum(sent[:, 0], came[:, 0]), end)
            size = message_bytes(plan, step, move)
            yield Rows("message", step, move, start, end, came[:, 1], size)
            if move.accumulates:
                yield work("merge", step, move, *look("arrive", move.dst, first).T)
            first += len(move)
        first = 0
        for attend in nodes.attends:
            yield work("attend", step, attend, *look("attend", attend.rank, first).T)
            yield work("add", step, attend, *look("merge", attend.rank, first).T)
            first += len(attend)


def _time(plan: Plan, events: Events, key: tuple[Kind, int, int, int]) -> tuple[float, float]:
    if key not in events:
        kind, rank, step, number = key
        raise RingloomError(
            f"{plan.name}: {kind} {number} of rank {rank} in step {step} was not recorded"
        )
    return events[key]
