"""A recorded run: the trace of a real run, read back to be laid over its prediction.

The file is what `ringloom run --trace` writes, in the form of simulated traces: processes are
ranks, threads are numbered by streams, slices are in microseconds times `time_scale`. A comparison
is matched by the digest of the plans that ran.
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
    size = largest()
    parse = partial(from_json, largest=size)
    document = read(Path(path), parse, f"cannot read the trace {path}", size)
    if not isinstance(document, dict):
        raise RingloomError(f"{path} is not a trace of a run: not a JSON object")
    about, events = document.get("otherData"), document.get("traceEvents")
    if not isinstance(about, dict) or not isinstance(events, list):
        raise RingloomError(f"{path} is not a trace of a run: no traceEvents and otherData")
    scale = number(f"{path}: time_scale", about.get("time_scale", 1.0), 1e-9, 1e9)
    if not about.get("digest"):
        raise RingloomError(f"{path} does not name its plans: an earlier version, record it again")
    spans = [
        _span(f"{path}: event {at}", event, scale)
        for at, event in enumerate(events)
        if isinstance(event, dict) and event.get("ph") == "X"
    ]
    if not spans:
        raise RingloomError(f"{path} holds no slice of a run")
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
    """Returns a text of a trace, which is drawn and compared; of a long one its beginning."""
    return name(what, value[:LONGEST_NAME] if isinstance(value, str) else value)


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
