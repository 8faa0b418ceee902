"""A recorded run: the trace of a real run, read back to be laid over its prediction.

The file is what `ringloom run --trace` writes, in the form of simulated traces: processes are
ranks, threads are numbered by streams, slices are in microseconds times `time_scale`. A comparison
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
from simulator.chrome_trace import LANES, TRANSFER
from simulator.timeline import STREAMS, Span

LARGEST = 1 << 28  # bytes, unpacked


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
    spans = [
        _span(f"{path}: event {number}", event, scale)
        for number, event in enumerate(events)
        if isinstance(event, dict) and event.get("ph") == "X"
    ]
    if not spans:
        raise RingloomError(f"{path} holds no slice of a run")
    begin = min(s.start for s in spans)
    moved = [replace(s, start=s.start - begin, end=s.end - begin) for s in spans]
    return Recorded(
        **{name: str(about.get(name, "")) for name in ("plan", "digest", "work", "hardware")},
        ranks=max(s.rank for s in spans) + 1,
        makespan=max(s.end for s in moved),
        bars=tuple(s for s in moved if s.stream != "receive"),
    )


def _span(where: str, event: dict[str, Any], scale: float) -> Span:
    rank, thread, start, takes = (event.get(key) for key in ("pid", "tid", "ts", "dur"))
    if not isinstance(rank, int) or not 0 <= rank < 1 << 20:
        raise RingloomError(f"{where}: a rank must be a whole number from 0 up, not {rank!r}")
    if not isinstance(thread, int) or not 0 <= thread < LANES * len(STREAMS):
        raise RingloomError(f"{where}: a thread must be one of a stream, not {thread!r}")
    if not _number(start) or not _number(takes) or takes < 0:
        raise RingloomError(f"{where}: times must be numbers, not {start!r} and {takes!r}")
    begin, end = start * 1e-6 / scale, (start + takes) * 1e-6 / scale
    name, args = str(event.get("name", ""))[:200].removeprefix(f"{TRANSFER} "), event.get("args")
    step = args.get("step") if isinstance(args, dict) else None
    step = step if isinstance(step, int) else -1
    return Span(rank, STREAMS[thread // LANES], name, step, begin, end)


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
