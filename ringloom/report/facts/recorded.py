"""Reads the trace of a real run, to draw it below its prediction.

`ringloom run --trace` writes the file in the format of simulated traces: processes are ranks,
threads are numbered by streams, slices are in microseconds times `time_scale`. The digest of the
plans says which case of a comparison the run belongs to.
"""

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from ringloom.comparison import Comparison
from ringloom.planner.disk import from_json, largest, read
from ringloom.planner.errors import RingloomError
from ringloom.planner.files.digest import described, digest
from ringloom.planner.given import LONGEST_NAME, name, number, whole
from ringloom.simulator.chrome_trace import LANES, TRANSFER
from ringloom.simulator.timeline import STREAMS, Span
from ringloom.trials import Case

LARGEST_TIME = 1e18  # microseconds
MOST_RANKS, MOST_STEPS = 1 << 20, 1 << 31
NAMES = "plan", "digest", "work", "hardware"


@dataclass(frozen=True, eq=False)
class Recorded:
    """A run: name, digest and work of its plans, hardware, ranks, makespan [s] and bars."""

    plan: str
    digest: str
    work: str
    hardware: str
    ranks: int
    makespan: float
    bars: tuple[Span, ...]


def recorded(path: str | Path) -> Recorded:
    """Reads a trace, .json or .json.gz; raises RingloomError for any other file."""
    size = largest()
    parse = partial(from_json, largest=size)
    document = read(Path(path), parse, f"cannot read the trace {path}", size)
    if not isinstance(document, dict):
        raise RingloomError(f"{path} is not a trace of a run: not a JSON object")
    about, events = document.get("otherData"), document.get("traceEvents")
    if not isinstance(about, dict) or not isinstance(events, list):
        lack = "it needs traceEvents, a list, and otherData, an object"
        raise RingloomError(f"{path} is not a trace of a run: {lack}")
    scale = number(f"{path}: time_scale", about.get("time_scale", 1.0), 1e-9, 1e9)
    if not about.get("digest"):
        raise RingloomError(f"{path} has no digest of its plans: an old format, record it again")
    spans = [
        _span(f"{path}: event {at}", event, scale)
        for at, event in enumerate(events)
        if isinstance(event, dict) and event.get("ph") == "X"
    ]
    if not spans:
        raise RingloomError(f"{path} contains no slices of a run")
    begin = min(s.start for s in spans)
    moved = [replace(s, start=s.start - begin, end=s.end - begin) for s in spans]
    return Recorded(
        **{key: _text(f"{path}: {key}", about.get(key, "")) for key in NAMES},
        ranks=max(s.rank for s in spans) + 1,
        makespan=max(s.end for s in moved),
        bars=tuple(s for s in moved if s.stream != "receive"),
    )


def _span(where: str, event: dict[str, Any], scale: float) -> Span:
    rank = whole(f"{where}: the rank", event.get("pid"), 0, MOST_RANKS)
    thread = whole(f"{where}: the thread", event.get("tid"), 0, LANES * len(STREAMS) - 1)
    start = number(f"{where}: the start", event.get("ts"), -LARGEST_TIME, LARGEST_TIME)
    takes = number(f"{where}: the duration", event.get("dur"), 0, LARGEST_TIME)
    args = event.get("args")
    step = args.get("step", -1) if isinstance(args, dict) else -1
    return Span(
        rank,
        STREAMS[thread // LANES],
        _text(f"{where}: the name", event.get("name", "")).removeprefix(f"{TRANSFER} "),
        whole(f"{where}: the step", step, -1, MOST_STEPS),
        start * 1e-6 / scale,
        (start + takes) * 1e-6 / scale,
    )


def _text(what: str, value: object) -> str:
    """Returns a text of a trace; raises RingloomError unless it is one. Long texts are cut."""
    return name(what, value[:LONGEST_NAME] if isinstance(value, str) else value)


# ---- the case of a comparison that ran


def matching_case(compared: Comparison, run: Recorded) -> Case:
    """Returns the case whose plans ran; raises RingloomError if there is none."""
    for case in compared.cases:
        if digest(case.plans) == run.digest:
            return case
    first, names = compared.cases[0], ", ".join(case.row.schedule for case in compared.cases)
    raise RingloomError(
        f"the recorded run has other plans: {run.plan} on {run.ranks} ranks, {run.work[:200]};"
        f" the report has {names} on {compared.ranks} ranks, {described(first.plans)}"
    )
