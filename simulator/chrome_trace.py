"""A timeline as a Chrome trace, which Perfetto opens and HolisticTraceAnalysis counts.

process   a rank                       X   a slice: an attend, a merge, a send, a receive
thread    a stream of that rank        s f a flow arrow from each send to its receive
counter   bytes live on a rank         M   the names of ranks and streams

Analysers tell transfers by names that begin with nccl and by args.stream, and read whole
microseconds only: `whole` rounds to those, and `scale` stretches time so that they are enough.
A rank may have several messages under way, on different ports: a second one at a time goes to a
second thread, so slices of one thread never overlap.
"""

import gzip
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal

import numpy as np

from planner.disk import writing
from planner.errors import RingloomError
from simulator.memory import Memory
from simulator.runs import Run
from simulator.timeline import Timeline, entries

Event = dict[str, Any]
Stream = Literal["compute", "merge", "send", "receive"]
STREAMS: tuple[Stream, ...] = ("compute", "merge", "send", "receive")
TRANSFER = "ncclDevKernel_SendRecv"  # what analysers take for a transfer
LANES = 100  # thread = stream * LANES + lane
LARGEST = 2_000_000  # events


@dataclass(frozen=True, slots=True)
class Ticks:
    """Seconds as the numbers of a trace: thousandths of microseconds, or whole ones."""

    scale: float
    whole: bool
    offset: float = 0.0

    def at(self, seconds: float) -> int:
        """Round a time to the smallest unit that is kept."""
        return round((self.offset + seconds) * self.scale * (1e6 if self.whole else 1e9))

    def micro(self, ticks: int) -> float | int:
        """Return microseconds, as traces want them."""
        return ticks if self.whole else ticks / 1000


@dataclass(frozen=True, slots=True)
class Slice:
    """An interval of a stream, in ticks; `flow` is the number of its message, if any."""

    rank: int
    stream: Stream
    name: str
    start: int
    end: int
    args: Event
    flow: int = -1


def trace(
    run: Run,
    *,
    scale: float = 1.0,
    whole: bool = False,
    ranks: Iterable[int] | None = None,
) -> dict[str, Any]:
    """Return the trace of a run or a prediction as a JSON object; a pair runs in turn.

    `scale` stretches time, `whole` rounds to microseconds, `ranks` keeps some ranks only. Raises
    RingloomError where rows were not kept, and for more than two million events.
    """
    if not scale > 0:
        raise RingloomError(f"a time scale is more than 0, not {scale:g}")
    chosen = range(run.ranks) if ranks is None else sorted(set(ranks))
    slices, counters, flows = list[Slice](), list[Event](), 0
    for one, offset in run.in_turn():
        timeline, ticks = one.timeline, Ticks(scale, whole, offset)
        if timeline is None:
            raise RingloomError(f"{one.name}: the rows were not kept; simulate with record=True")
        slices += _slices(timeline, ticks, flows)
        counters += _counters(timeline, one.memory, ticks, chosen)
        flows += one.messages
    if len(slices) > LARGEST:
        raise RingloomError(
            f"a trace of {len(slices)} events is more than the {LARGEST} that one holds"
        )
    kept = set(chosen)
    body = _threads([s for s in slices if s.rank in kept], Ticks(scale, whole))
    events = [*_processes(chosen), *body, *counters]
    return {
        "displayTimeUnit": "ns",
        "otherData": {"plan": run.name, "hardware": run.hardware, "time_scale": scale},
        "traceEvents": events,
    }


def _slices(timeline: Timeline, ticks: Ticks, flow: int) -> Iterator[Slice]:
    """Yield all slices with a length; messages are numbered from `flow` on, in plan order.

    A receive is as long as its send, and ends when the message has arrived.
    """
    for entry in entries(timeline):
        start, end, args = ticks.at(entry.start), ticks.at(entry.end), {"step": entry.step}
        if entry.kind == "message":
            args |= {"bytes": entry.bytes}
            if end > start:
                name = f"{TRANSFER} {entry.title}"
                yield Slice(entry.src, "send", name, start, end, args, flow)
                name, arrival = (
                    f"{TRANSFER} receive {entry.name} from {entry.src}",
                    ticks.at(entry.arrival),
                )
                start = arrival - (end - start)
                yield Slice(entry.dst, "receive", name, start, arrival, args, flow)
            flow += 1
        elif end > start:
            stream = STREAMS[0] if entry.kind == "attend" else STREAMS[1]
            yield Slice(entry.dst, stream, entry.title, start, end, args)


def _threads(slices: list[Slice], ticks: Ticks) -> Iterator[Event]:
    """Yield the events of all slices, thread by thread, and the arrows that keep both ends."""
    ends = [s.flow for s in slices if s.flow >= 0]
    whole = {flow for flow, n in zip(*np.unique(ends, return_counts=True), strict=True) if n == 2}
    streams = dict[tuple[int, int], list[Slice]]()
    for s in slices:
        streams.setdefault((s.rank, STREAMS.index(s.stream)), []).append(s)
    for (rank, stream), group in sorted(streams.items()):
        free = list[int]()  # when each lane's last slice ends
        for s in sorted(group, key=attrgetter("start", "end", "name")):
            lane = next((n for n, end in enumerate(free) if end <= s.start), len(free))
            free[lane:] = [s.end, *free[lane + 1 :]]
            thread = stream * LANES + lane
            yield _event(s, thread, ticks)
            if s.flow in whole:
                yield _arrow(s, thread, ticks)
        for lane in range(len(free)):
            yield from _thread_names(rank, stream, lane)


def _event(s: Slice, thread: int, ticks: Ticks) -> Event:
    return {
        "ph": "X",
        "cat": "kernel",
        "name": s.name,
        "pid": s.rank,
        "tid": thread,
        "ts": ticks.micro(s.start),
        "dur": ticks.micro(s.end - s.start),
        "args": {"stream": thread, **s.args},
    }


def _arrow(s: Slice, thread: int, ticks: Ticks) -> Event:
    """Draw an end of the arrow from the start of a send to the start of its receive."""
    end = {"ph": "s"} if s.stream == "send" else {"ph": "f", "bp": "e"}
    place = {"pid": s.rank, "tid": thread, "ts": ticks.micro(s.start)}
    return {**end, "cat": "message", "name": "message", "id": s.flow, **place}


def _processes(ranks: Iterable[int]) -> Iterator[Event]:
    for rank in ranks:
        yield {"ph": "M", "name": "process_name", "pid": rank, "args": {"name": f"rank {rank}"}}
        yield {"ph": "M", "name": "process_sort_index", "pid": rank, "args": {"sort_index": rank}}


def _thread_names(rank: int, stream: int, lane: int) -> Iterator[Event]:
    name = STREAMS[stream] + (f" {lane + 1}" if lane else "")
    thread = {"ph": "M", "pid": rank, "tid": stream * LANES + lane}
    yield {**thread, "name": "thread_name", "args": {"name": name}}
    yield {**thread, "name": "thread_sort_index", "args": {"sort_index": thread["tid"]}}


def _counters(
    timeline: Timeline, used: Memory | None, ticks: Ticks, ranks: Iterable[int]
) -> Iterator[Event]:
    """Yield the bytes live on each rank from the beginning of each step."""
    if used is None or timeline.steps is None:
        return
    begins = timeline.begin
    for rank in ranks:
        times, sizes = begins[:, rank].tolist(), used.live[:, rank].tolist()
        for time, size in zip(times, sizes, strict=True):
            at = ticks.micro(ticks.at(time))
            yield {"ph": "C", "name": "memory", "pid": rank, "ts": at, "args": {"bytes": size}}


def save_trace(document: dict[str, Any], path: str | Path) -> Path:
    """Write a trace as .json or .json.gz: the same bytes for the same trace, whenever written.

    Raises RingloomError for another ending and where the file cannot be written.
    """
    file = trace_file(path)
    content = json.dumps(document, separators=(",", ": "), allow_nan=False).encode()
    if file.name.endswith(".gz"):
        content = gzip.compress(content, mtime=0)
    with writing(file):
        file.write_bytes(content)
    return file


def trace_file(path: str | Path) -> Path:
    """Return the path; raises RingloomError unless it ends in .json or .json.gz."""
    file = Path(path)
    if not file.name.endswith((".json", ".json.gz")):
        raise RingloomError(f"a trace file ends in .json or .json.gz, not {file.name}")
    return file
