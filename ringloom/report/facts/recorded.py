"""Reads the trace of a recorded run, to draw it below its prediction.

`ringloom run --trace` writes the file in the format of simulated traces: a process per rank, a
thread per stream, slices in microseconds times `time_scale`. The digest of the plans identifies the
case of a comparison.
"""

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from ringloom.comparison import Comparison
from ringloom.planner.disk import from_json, largest, read
from ringloom.planner.errors import RingloomError
from ringloom.planner.files.digest import describe_plans, digest
from ringloom.planner.given import LONGEST_NAME, require_integer, require_name, require_number
from ringloom.simulator.chrome_trace import LANES, TRANSFER
from ringloom.simulator.timeline import STREAMS, Span
from ringloom.trials import Case

LARGEST_TIME = 1e18  # microseconds
MOST_RANKS, MOST_STEPS = 1 << 20, 1 << 31
NAMES = "plan", "digest", "work", "hardware"


@dataclass(frozen=True, eq=False)
class Recorded:
    """A recorded run: name, digest and workload of its plans, hardware, makespan [s] and bars."""

    plan: str
    digest: str
    work: str
    hardware: str
    ranks: int
    makespan: float
    bars: tuple[Span, ...]


def recorded(path: str | Path) -> Recorded:
    """Reads a trace, .json or .json.gz; raises RingloomError for an invalid file."""
    limit = largest()
    parse = partial(from_json, largest=limit)
    document = read(Path(path), parse, f"cannot read the trace {path}", limit)
    if not isinstance(document, dict):
        raise RingloomError(f"{path} is not a trace of a run: it must be a JSON object")
    metadata, events = document.get("otherData"), document.get("traceEvents")
    if not isinstance(metadata, dict) or not isinstance(events, list):
        needs = "it needs a list traceEvents and an object otherData"
        raise RingloomError(f"{path} is not a trace of a run: {needs}")
    scale = require_number(f"{path}: time_scale", metadata.get("time_scale", 1.0), 1e-9, 1e9)
    if not metadata.get("digest"):
        raise RingloomError(f"{path} has an old format, without a digest: record the run again")
    spans = [
        _span(f"{path}: event {index}", event, scale)
        for index, event in enumerate(events)
        if isinstance(event, dict) and event.get("ph") == "X"
    ]
    if not spans:
        raise RingloomError(f"{path} contains no slices of a run")
    begin = min(s.start for s in spans)
    shifted = [replace(s, start=s.start - begin, end=s.end - begin) for s in spans]
    return Recorded(
        **{key: _text(f"{path}: {key}", metadata.get(key, "")) for key in NAMES},
        ranks=max(s.rank for s in spans) + 1,
        makespan=max(s.end for s in shifted),
        bars=tuple(s for s in shifted if s.stream != "receive"),
    )


def _span(where: str, event: dict[str, Any], scale: float) -> Span:
    rank = require_integer(f"{where}: the rank", event.get("pid"), 0, MOST_RANKS)
    thread = require_integer(f"{where}: the thread", event.get("tid"), 0, LANES * len(STREAMS) - 1)
    start = require_number(f"{where}: the start", event.get("ts"), -LARGEST_TIME, LARGEST_TIME)
    duration = require_number(f"{where}: the duration", event.get("dur"), 0, LARGEST_TIME)
    args = event.get("args")
    step = args.get("step", -1) if isinstance(args, dict) else -1
    return Span(
        rank,
        STREAMS[thread // LANES],
        _text(f"{where}: the name", event.get("name", "")).removeprefix(f"{TRANSFER} "),
        require_integer(f"{where}: the step", step, -1, MOST_STEPS),
        start * 1e-6 / scale,
        (start + duration) * 1e-6 / scale,
    )


def _text(label: str, value: object) -> str:
    """Returns a text, cut if it is long; raises RingloomError for any other value."""
    return require_name(label, value[:LONGEST_NAME] if isinstance(value, str) else value)


def matching_case(comparison: Comparison, run: Recorded) -> Case:
    """Returns the case with the plans of the run; raises RingloomError if there is none."""
    for case in comparison.cases:
        if digest(case.plans) == run.digest:
            return case
    first, names = comparison.cases[0], ", ".join(case.row.schedule for case in comparison.cases)
    raise RingloomError(
        f"the recorded run has other plans: {run.plan} on {run.ranks} ranks, {run.work[:200]};"
        f" the report has {names} on {comparison.ranks} ranks, {describe_plans(first.plans)}"
    )
