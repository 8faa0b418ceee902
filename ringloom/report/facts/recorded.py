"""A recorded run: the trace of a real run, read back to be laid over its prediction.

The file is what `ringloom run --trace` writes, in the form of simulated traces: processes are
ranks, threads are named after streams, slices are in microseconds times `time_scale`. It names
neither tokens nor heads nor the mask: a comparison is matched by its schedule and ranks, by the
tiles that were attended and by the bytes of messages.
"""

import json
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard, cast

from planner.analysis.messages import message_bytes
from planner.disk import read
from planner.errors import RingloomError
from planner.ir import Plan
from ringloom.comparison import Case, Comparison
from ringloom.views.units import size
from simulator.bars import STREAMS, Bars, columns
from simulator.timeline import Span, Stream, block_names, tile_names

LARGEST = 1 << 28  # bytes, unpacked
PREFIX = "ncclDevKernel_SendRecv "  # that traces put before the names of transfers
RECORDED = STREAMS[:4]  # a wait is where nothing is recorded
Done = tuple[int, int, str, int]  # rank, step, what, bytes


@dataclass(frozen=True, eq=False)
class Recorded:
    """A run: the plan's name, where, how many ranks, how long [s], every bar.

    `attends` and `messages` count what was done, of all ranks.
    """

    plan: str
    hardware: str
    ranks: int
    makespan: float
    bars: Bars
    attends: Counter[Done]
    messages: Counter[Done]


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
    sizes, spans = _spans(path, events, scale)
    begin = min(s.start for s in spans)
    moved = [Span(s.rank, s.stream, s.name, s.step, s.start - begin, s.end - begin) for s in spans]
    return Recorded(
        str(about.get("plan", "")),
        str(about.get("hardware", "")),
        max(s.rank for s in spans) + 1,
        max(s.end for s in moved),
        columns([s for s in moved if s.stream != "receive"]),
        _done(spans, sizes, "compute", "attend "),
        _done(spans, sizes, "send", "send "),
    )


def _done(spans: list[Span], sizes: list[int], stream: Stream, verb: str) -> Counter[Done]:
    """Count what a stream of all ranks did; the verb is left out."""
    pairs = zip(spans, sizes, strict=True)
    return Counter(
        (s.rank, s.step, s.name.removeprefix(verb), n) for s, n in pairs if s.stream == stream
    )


def _spans(path: str | Path, events: list[Any], scale: float) -> tuple[list[int], list[Span]]:
    """Returns the bytes and the slices of all streams; raises RingloomError for none."""
    streams = {
        (e.get("pid"), e.get("tid")): str(e.get("args", {}).get("name", "")).split(" ")[0]
        for e in events
        if isinstance(e, dict)
        and e.get("name") == "thread_name"
        and isinstance(e.get("args"), dict)
    }
    sizes, spans = list[int](), list[Span]()
    for number, event in enumerate(events):
        if not isinstance(event, dict) or event.get("ph") != "X":
            continue
        stream = streams.get((event.get("pid"), event.get("tid")), "")
        if stream in RECORDED:
            spans.append(_span(f"{path}: event {number}", event, cast(Stream, stream), scale))
            sizes.append(_argument(event, "bytes", 0))
    if not spans:
        raise RingloomError(f"{path} holds no slice of a stream: {', '.join(RECORDED)}")
    return sizes, spans


def _argument(event: dict[str, Any], name: str, usual: int) -> int:
    """Returns a whole number among the args of an event, or the usual one."""
    args = event.get("args")
    value = args.get(name) if isinstance(args, dict) else None
    return value if isinstance(value, int) else usual


def _span(where: str, event: dict[str, Any], stream: Stream, scale: float) -> Span:
    rank, start, takes = (event.get(key) for key in ("pid", "ts", "dur"))
    if not isinstance(rank, int) or not 0 <= rank < 1 << 20:
        raise RingloomError(f"{where}: a rank must be a whole number from 0 up, not {rank!r}")
    if not _number(start) or not _number(takes) or takes < 0:
        raise RingloomError(f"{where}: times must be numbers, not {start!r} and {takes!r}")
    begin, end = start * 1e-6 / scale, (start + takes) * 1e-6 / scale
    name = str(event.get("name", ""))[:200].removeprefix(PREFIX)
    return Span(rank, stream, name, _argument(event, "step", -1), begin, end)


def _number(value: Any) -> TypeGuard[float]:
    plain = isinstance(value, int | float) and not isinstance(value, bool)
    return plain and math.isfinite(value)


# ---- the case of a comparison that a run is of


def matching(compared: Comparison, run: Recorded) -> Case:
    """The case that the run is of; raises RingloomError, with the numbers, where there is none."""
    names = [case.row.schedule for case in compared.cases]
    if run.plan not in names:
        raise RingloomError(
            f"the recorded run is of {run.plan!r}, the report of {', '.join(names)}"
        )
    if run.ranks != compared.ranks:
        raise RingloomError(f"the recorded run has {run.ranks} ranks, the report {compared.ranks}")
    case = compared.cases[names.index(run.plan)]
    _same_attends(case, run)
    _same_messages(case, run)
    return case


def _same_attends(case: Case, run: Recorded) -> None:
    asked = Counter(done for plan in case.plans for done in _attends(plan))
    if run.attends == asked:
        return
    recorded, wanted = run.attends.total(), asked.total()
    raise RingloomError(
        f"the recorded run attends {recorded} times, {run.plan} of the report {wanted} times,"
        f" {(run.attends & asked).total()} of them alike: not the same mask, heads or pass"
    )


def _same_messages(case: Case, run: Recorded) -> None:
    """No message beyond those of the plan: one that took no time has no bar."""
    asked = Counter(done for plan in case.plans for done in _messages(plan))
    if not (other := run.messages - asked):
        return
    done = next(iter(other))
    alike = [n for (rank, step, name, n) in asked if (rank, step, name) == done[:3]]
    wanted = f"{size(alike[0])} ({alike[0]} bytes)" if alike else "nothing of the kind"
    raise RingloomError(
        f"the recorded run's rank {done[0]} sends {done[2]} of {size(done[3])} ({done[3]} bytes) in"
        f" step {done[1] + 1}, {run.plan} of the report {wanted}: not the same workload"
    )


def _attends(plan: Plan) -> Iterator[Done]:
    for step, node in plan.attends():
        for rank, name in zip(node.rank.tolist(), tile_names(node), strict=True):
            yield rank, step, name, 0


def _messages(plan: Plan) -> Iterator[Done]:
    for step, move in plan.moves():
        ends = move.src.tolist(), move.dst.tolist(), message_bytes(plan, step, move).tolist()
        for src, dst, sent, name in zip(*ends, block_names(move), strict=True):
            yield src, step, f"{name} to {dst}", sent
