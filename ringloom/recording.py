"""record(plan, q, k, v)   runs a plan and returns the timeline of the run.

The timeline has the same type as a predicted timeline, so the same code draws and writes both, and
a report overlays them.
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
    """A recorded run of one pass, or of a forward pass followed by a backward pass.

    `hardware` is the name of the backend. A single pass has a `timeline`; a pair has both
    recordings in `passes`. The `makespan` [seconds] of the forward pass ends when the backward pass
    starts, even if some ranks still run the forward pass.
    """

    def __repr__(self) -> str:
        where = f"{self.ranks} ranks of {self.hardware}"
        return f"<Recording {self.name}, {where}: {self.makespan:.4g} s, {self.messages} messages>"

    def save(self, path: str | Path) -> Path:
        """Writes a Chrome trace, .json or .json.gz; raises RingloomError if that fails."""
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
    """Runs a plan and records the run; returns the results of `run`, and the recording.

    The torch backend runs the program twice in separate processes and records the second run; its
    limit is `timeout` in seconds. With numpy, virtual ranks take turns on one processor. Raises
    RingloomError for a backend whose runs cannot be recorded, and as `run` does.
    """
    arrays = (q, k, v) if dout is None else (q, k, v, dout)
    results, passes = backends.record(plan, *arrays, sinks=sinks, backend=backend, **limits)
    recordings = [_recording(one_pass, events, backend) for one_pass, events in passes]
    if len(recordings) == 1:
        return results, recordings[0]
    forward, backward = recordings
    starts = [min(events.values())[0] for _, events in passes if events]
    if len(starts) == 2:
        forward = replace(forward, makespan=starts[1] - starts[0])
    pair = replace(
        forward,
        makespan=max(recordings[0].makespan, forward.makespan + backward.makespan),
        messages=forward.messages + backward.messages,
        timeline=None,
        passes=(forward, backward),
    )
    return results, pair


def _recording(plan: Plan, events: Events, backend: str) -> Recording:
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
    """Returns the timeline of a run in the row order of the plan; time 0 is the first event.

    Raises RingloomError unless every attend and both ends of every message have an event.
    """
    zero, _ = min(events.values(), default=(0.0, 0.0))
    events = {key: (start - zero, end - zero) for key, (start, end) in events.items()}
    finish = np.zeros(plan.ranks)
    for (_, rank, _, _), (_, end) in events.items():
        finish[rank] = max(finish[rank], end)
    rows = tuple(_rows(plan, events))
    return Timeline(plan, float(finish.max(initial=0.0)), finish, steps=None, rows=rows)


def _rows(plan: Plan, events: Events) -> Iterator[Rows]:
    """Yields the rows of every node in plan order."""
    for step, nodes in enumerate(plan.steps):

        def times(kind: Kind, ranks: Ints, first: int, step: int = step) -> Floats:
            rows = [
                _time(plan, events, (kind, rank, step, number))
                for number, rank in enumerate(ranks.tolist(), first)
            ]
            return np.array(rows).reshape(-1, 2)

        first = 0
        for move in nodes.moves:
            send, receive = times("send", move.src, first), times("receive", move.dst, first)
            # The link is free once either end knows that the transfer is complete.
            end = np.minimum(send[:, 1], receive[:, 1])
            start = np.minimum(np.maximum(send[:, 0], receive[:, 0]), end)
            size = message_bytes(plan, step, move)
            yield Rows("message", step, move, start, end, receive[:, 1], size)
            if move.accumulates:
                yield work("merge", step, move, *times("arrive", move.dst, first).T)
            first += len(move)
        first = 0
        for attend in nodes.attends:
            yield work("attend", step, attend, *times("attend", attend.rank, first).T)
            yield work("add", step, attend, *times("merge", attend.rank, first).T)
            first += len(attend)


def _time(plan: Plan, events: Events, key: tuple[Kind, int, int, int]) -> tuple[float, float]:
    if key not in events:
        kind, rank, step, number = key
        raise RingloomError(
            f"{plan.name}: {kind} {number} of rank {rank} in step {step} was not recorded"
        )
    return events[key]
