"""A recorded run: the trace of a real run, read back to be laid over its prediction.

The file is what `ringloom run --trace` writes, in the form of simulated traces: processes are
ranks, threads are named after streams, slices are in microseconds times `time_scale`. A comparison
is matched by the digest of the plans that ran.
"""

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeGuard

from planner.disk import read
from planner.errors import RingloomError
from planner.files.digest import described, digest
from ringloom.comparison import Case, Comparison
from simulator.timeline import STREAMS, Span, Stream

LARGEST = 1 << 28  # bytes, unpacked
PREFIX = "ncclDevKernel_SendRecv "  # that traces put before the names of transfers
RECORDED = STREAMS[:4]  # a wait is where nothing is recorded


@dataclass(frozen=True, eq=False)
class Recorded:
    """A run: its plans by name, digest and work, where, how many ranks, how long [s], every bar."""

    plan: str
    digest: str
    work: str
    hardware: str
    ranks: int
    makespan: float
    bars: tuple[Span, ...]


def recorded(path: str | Path) -> Recorded:
    """Read a trace, .json or .json.gz; raises RingloomError, in one line, for any other file."""
    document = read(Path(path), json.loads, f"cannot read the trace {path}", LARGEST)
    if not isinstance(document, dict):
        raise RingloomError(f"{path} is not a trace of a run: not a JSON object")
    about, events = document.get("otherData"), document.get("traceEvents")
    if not isinstance(about, dict) or not isinstance(events, list):
        raise RingloomError(f"{path} is not a trace of a run: no traceEvents and otherData")
    scale = about.get("time_scale", 1.0)
    if not _number(scale) or scale <= 0:
        raise RingloomError(f"{path}: time_scale is {scale!r}, not a number above 0")
    if not about.get("digest"):
        raise RingloomError(f"{path} does not name its plans: an earlier version, record it again")
    spans = _spans(path, events, scale)
    begin = min(s.start for s in spans)
    moved = [replace(s, start=s.start - begin, end=s.end - begin) for s in spans]
    names = "plan", "digest", "work", "hardware"
    plan, own, work, hardware = (str(about.get(name, "")) for name in names)
    return Recorded(
        plan,
        own,
        work,
        hardware,
        max(s.rank for s in spans) + 1,
        max(s.end for s in moved),
        tuple(s for s in moved if s.stream != "receive"),
    )


def _spans(path: str | Path, events: list[Any], scale: float) -> list[Span]:
    """Returns the slices of all streams; raises RingloomError for none."""
    streams = {
        (e.get("pid"), e.get("tid")): str(e.get("args", {}).get("name", "")).split(" ")[0]
        for e in events
        if isinstance(e, dict)
        and e.get("name") == "thread_name"
        and isinstance(e.get("args"), dict)
    }
    spans = list[Span]()
    for number, event in enumerate(events):
        if not isinstance(event, dict) or event.get("ph") != "X":
            continue
        stream = streams.get((event.get("pid"), event.get("tid")), "")
        if stream in RECORDED:
            spans.append(_span(f"{path}: event {number}", event, stream, scale))
    if not spans:
        raise RingloomError(f"{path} holds no slice of a stream: {', '.join(RECORDED)}")
    return spans


def _span(where: str, event: dict[str, Any], stream: Stream, scale: float) -> Span:
    rank, start, takes = (event.get(key) for key in ("pid", "ts", "dur"))
    if not isinstance(rank, int) or not 0 <= rank < 1 << 20:
        raise RingloomError(f"{where}: a rank must be a whole number from 0 up, not {rank!r}")
    if not _number(start) or not _number(takes) or takes < 0:
        raise RingloomError(f"{where}: times must be numbers, not {start!r} and {takes!r}")
    begin, end = start * 1e-6 / scale, (start + takes) * 1e-6 / scale
    name, args = str(event.get("name", ""))[:200].removeprefix(PREFIX), event.get("args")
    step = args.get("step") if isinstance(args, dict) else None
    return Span(rank, stream, name, step if isinstance(step, int) else -1, begin, end)


def _number(value: Any) -> TypeGuard[float]:
    plain = isinstance(value, int | float) and not isinstance(value, bool)
    return plain and math.isfinite(value)


# ---- the case of a comparison that a run is of


def matching(compared: Comparison, run: Recorded) -> Case:
    """The case whose plans ran; raises RingloomError where there is none."""
    for case in compared.cases:
        if digest(case.plans) == run.digest:
            return case
    first, names = compared.cases[0], ", ".join(case.row.schedule for case in compared.cases)
    raise RingloomError(
        f"the recorded run is of other plans: {run.plan} on {run.ranks} ranks, {run.work[:200]};"
        f" the report is of {names} on {compared.ranks} ranks, {described(first.plans)}"
    )
