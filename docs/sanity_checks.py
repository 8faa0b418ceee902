"""Checks properties of predictions that need no measurement, and counts failures."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ringloom.planner.errors import PlanError
from ringloom.planner.ir import Plan
from ringloom.planner.planning import plan
from ringloom.planner.schedules import SCHEDULES
from ringloom.planner.workload import Workload
from ringloom.simulator.hardware import Hardware, hardware
from ringloom.simulator.prediction import simulate
from ringloom.simulator.timeline import Timeline, spans

MACHINES = "h100", "tpu-v4"
RATES = ("peak.bfloat16", "memory.bandwidth", "intra.bandwidth")
SLACK = 1 + 1e-9  # for rounding
CHECKS = {
    "causality": "messages arrive after they leave, and a rank computes one thing at a time",
    "bounds": "no plan of the class is faster than its lower bound",
    "monotonicity": "a rate that is 10% higher never makes a plan slower",
    "engines": "the recurrence and the discrete-event engine agree if both apply",
    "determinism": "two runs give the same time",
}


@dataclass(frozen=True)
class Count:
    """The number of runs of a check, and of failed runs."""

    runs: int
    failed: int


def count_failures(ranks: int = 4, seq: int = 2**13) -> dict[str, Count]:
    """Checks every schedule in both passes, on a machine with a switch and one with a torus."""
    runs, failed = Counter[str](), Counter[str]()
    for candidate in _plans(ranks, seq):
        for machine in map(hardware, MACHINES):
            for check, passed in run_checks(candidate, machine):
                runs[check] += 1
                failed[check] += not passed
    return {check: Count(runs[check], failed[check]) for check in CHECKS}


def _plans(ranks: int, seq: int) -> Iterator[Plan]:
    work = Workload(seq=seq, heads=16, kv_heads=8)
    for name in SCHEDULES:
        for pass_ in ("forward", "backward"):
            try:
                yield plan(name, work, ranks, pass_=pass_)
            except PlanError:  # schedules that need other ranks or heads
                continue


def run_checks(candidate: Plan, machine: Hardware) -> Iterator[tuple[str, bool]]:
    """Yields each of `CHECKS` that applies to a plan on some hardware, and True if it passes."""
    base = simulate(candidate, machine, record=True)
    assert base.timeline is not None
    yield "causality", _is_in_order(base.timeline)
    if base.bound_ratio is not None:
        yield "bounds", base.bound_ratio * SLACK >= 1
    for key in RATES:
        time = simulate(candidate, machine.changed({key: 1.1 * machine[key]})).makespan
        yield "monotonicity", time <= base.makespan * SLACK
    if base.engine == "recurrence":
        events = simulate(candidate, machine, engine="events").makespan
        yield "engines", bool(np.isclose(events, base.makespan, rtol=1e-9))
    yield "determinism", simulate(candidate, machine, record=True).makespan == base.makespan


def _is_in_order(timeline: Timeline) -> bool:
    """Returns True if messages arrive after they leave and no rank computes two things at once."""
    free_at = dict[int, float]()
    sent = [row for row in timeline.rows or () if row.kind == "message"]
    if not all(((row.start <= row.end) & (row.end <= row.arrival)).all() for row in sent):
        return False
    compute = (s for s in spans(timeline) if s.stream in ("compute", "merge"))
    for span in sorted(compute, key=lambda span: (span.start, span.end)):
        if span.end < span.start or span.start * SLACK < free_at.get(span.rank, 0.0):
            return False
        free_at[span.rank] = span.end
    return True
