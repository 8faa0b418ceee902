"""Writes a timeline as a Chrome trace, for Perfetto and HolisticTraceAnalysis.

process   a rank                       X   a slice: an attend, a merge, a send, a receive
thread    a stream of that rank        s f a flow arrow from each send to its receive
counter   bytes live on a rank         M   the names of ranks and streams

Analysers recognise transfers by names that start with nccl and by args.stream, and read only whole
microseconds: `whole` rounds to microseconds, and `scale` stretches time to keep enough digits.
A rank may send several messages at the same time over different ports. They go to separate threads,
so slices of one thread never overlap.
"""

import gzip
import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any, SupportsFloat

from ringloom.planner.disk import write
from ringloom.planner.errors import RingloomError, as_tuple_of, brief
from ringloom.planner.files.digest import describe_plans, digest
from ringloom.planner.ir import Plan
from ringloom.simulator.memory import Memory
from ringloom.simulator.timeline import STREAMS, Run, Span, Timeline, spans

Event = dict[str, Any]
TRANSFER = "ncclDevKernel_SendRecv"  # a name that analysers recognise as a transfer
LANES = 100  # thread = stream * LANES + lane
LARGEST = 2_000_000  # events


@dataclass(frozen=True, slots=True)
class Ticks:
    """Converts seconds to ticks of a trace: nanoseconds, or whole microseconds."""

    scale: float
    whole: bool
    offset: float = 0.0

    def at(self, seconds: float) -> int:
        """Rounds a time to ticks."""
        return round((self.offset + seconds) * self.scale * (1e6 if self.whole else 1e9))

    def micro(self, ticks: float) -> float:
        """Returns ticks as microseconds, the unit of traces."""
        return ticks if self.whole else ticks / 1000


def trace(
    run: Run,
    *,
    scale: float = 1.0,
    whole: bool = False,
    ranks: Iterable[int] | None = None,
) -> dict[str, Any]:
    """Returns the trace of a run or a prediction as a JSON object, one pass after the other.

    `scale` stretches time, `whole` rounds to microseconds, `ranks` selects ranks. Raises
    RingloomError if rows were not kept, and for more than two million events.
    """
    if not isinstance(run, Run):
        raise RingloomError(f"trace takes a prediction or a recording, not {brief(run)}")
    if not isinstance(scale, SupportsFloat) or not 0 < scale < math.inf:
        raise RingloomError(f"scale must be more than 0, not {brief(scale)}")
    chosen = range(run.ranks) if ranks is None else sorted(set(ranks))
    if unknown := [rank for rank in chosen if rank not in range(run.ranks)]:
        raise RingloomError(f"a trace of {run.ranks} ranks has no rank {unknown[0]}")
    slices, counters, plans, messages = list[Span](), list[Event](), list[Plan](), 0
    for part, offset in run.in_turn():
        timeline, ticks = part.timeline, Ticks(scale, whole, offset)
        if timeline is None:
            raise RingloomError(f"{part.name}: the rows were not kept; simulate with record=True")
        slices += _slices(timeline, ticks, messages)
        counters += _counters(timeline, part.memory, ticks, chosen)
        plans.append(timeline.plan)
        messages += part.messages
    if len(slices) > LARGEST:
        raise RingloomError(f"the trace would have {len(slices)} events; the limit is {LARGEST}")
    shown = set(chosen)
    body = _threads([s for s in slices if s.rank in shown], Ticks(scale, whole))
    names = (name for rank in chosen for name in _names("process", f"rank {rank}", pid=rank))
    events = [*names, *body, *counters]
    return {
        "displayTimeUnit": "ns",
        "otherData": {
            "plan": run.name,
            "digest": digest(plans),
            "work": describe_plans(plans),
            "hardware": run.hardware,
            "time_scale": scale,
        },
        "traceEvents": events,
    }


def _slices(timeline: Timeline, ticks: Ticks, first: int) -> Iterator[Span]:
    """Yields the spans of at least one tick; messages have numbers from `first` on."""
    for s in spans(timeline):
        start, end = ticks.at(s.start), ticks.at(s.end)
        message = s.message + first if s.message >= 0 else -1
        if end > start:
            yield Span(s.rank, s.stream, s.name, s.step, start, end, s.bytes, message)


def _threads(slices: list[Span], ticks: Ticks) -> Iterator[Event]:
    """Yields the slices of each thread, and the arrows of messages with both ends in `slices`."""
    ends = Counter(s.message for s in slices if s.message >= 0)
    streams = dict[tuple[int, int], list[Span]]()
    for s in slices:
        streams.setdefault((s.rank, STREAMS.index(s.stream)), []).append(s)
    for (rank, stream), group in sorted(streams.items()):
        free = list[float]()  # the end of the last slice in each lane
        for s in sorted(group, key=attrgetter("start", "end", "name")):
            lane = next((n for n, end in enumerate(free) if end <= s.start), len(free))
            free[lane:] = [s.end, *free[lane + 1 :]]
            thread = stream * LANES + lane
            place = {"pid": s.rank, "tid": thread, "ts": ticks.micro(s.start)}
            duration, args = ticks.micro(s.end - s.start), {"stream": thread, "step": s.step}
            name = s.name
            if s.message >= 0:
                name, args = f"{TRANSFER} {name}", args | {"bytes": s.bytes}
            yield {"ph": "X", "cat": "kernel", "name": name, **place, "dur": duration, "args": args}
            if ends[s.message] == 2:  # an arrow from a send to its receive
                end = {"ph": "s"} if s.stream == "send" else {"ph": "f", "bp": "e"}
                yield {**end, "cat": "message", "name": "message", "id": s.message, **place}
        for lane in range(len(free)):
            name = STREAMS[stream] + (f" {lane + 1}" if lane else "")
            yield from _names("thread", name, pid=rank, tid=stream * LANES + lane)


def _names(kind: str, name: str, **place: int) -> Iterator[Event]:
    """Yields the name and the sort index of a process or a thread."""
    order = place.get("tid", place["pid"])
    yield {"ph": "M", **place, "name": f"{kind}_name", "args": {"name": name}}
    yield {"ph": "M", **place, "name": f"{kind}_sort_index", "args": {"sort_index": order}}


def _counters(
    timeline: Timeline, used: Memory | None, ticks: Ticks, ranks: Iterable[int]
) -> Iterator[Event]:
    """Yields the live bytes on each rank at the beginning of each step."""
    if used is None or timeline.steps is None:
        return
    times_of_steps = timeline.begin
    for rank in ranks:
        times, sizes = times_of_steps[:, rank].tolist(), used.live[:, rank].tolist()
        for time, size in zip(times, sizes, strict=True):
            at = ticks.micro(ticks.at(time))
            yield {"ph": "C", "name": "memory", "pid": rank, "ts": at, "args": {"bytes": size}}


def save_trace(document: dict[str, Any], path: str | Path) -> Path:
    """Writes a trace as .json or .json.gz; the same trace always gives the same bytes.

    Raises RingloomError for any other ending, and if the file cannot be written.
    """
    file, _ = trace_file(path), as_tuple_of(dict, (document,), "a trace")
    content = json.dumps(document, separators=(",", ": "), allow_nan=False).encode()
    if file.name.endswith(".gz"):
        content = gzip.compress(content, mtime=0)
    write(file, content)
    return file


def trace_file(path: str | Path) -> Path:
    """Returns a path that ends in .json or .json.gz; raises RingloomError for any other."""
    file = Path(str(path))
    if not file.name.endswith((".json", ".json.gz")):
        raise RingloomError(f"a trace file ends in .json or .json.gz, not {file.name}")
    return file
