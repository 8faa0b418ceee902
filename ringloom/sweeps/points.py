"""Point: one combination of a grid, and the row of results that it gives."""

import time
from dataclasses import dataclass, field
from platform import node
from typing import Any, Literal

from planner.errors import RingloomError
from planner.ir import Pass
from planner.planning import Trim, plan
from planner.schedules import SCHEDULES, Schedule
from planner.version import VERSION
from planner.workload import Workload
from ringloom.rows import shortage
from simulator.hardware import Hardware
from simulator.prediction import simulate
from simulator.scenario import Scenario

Row = dict[str, Any]


@dataclass(frozen=True)
class Named:
    """A schedule as it is typed, and its recipe, which a worker elsewhere may not know."""

    text: str
    recipe: Schedule = field(repr=False)


@dataclass(frozen=True)
class Point:
    """One combination: `labels` by key as rows and files show them, `values` as `predict` wants."""

    labels: Row
    values: dict[str, Any]


@dataclass(frozen=True)
class Outcome:
    """The row of a point; the host that computed it and the seconds it took, for the log only."""

    row: Row
    host: str
    seconds: float


def outcome(point: Point, version: str) -> Outcome:
    """Computes a point, anywhere; raises RingloomError where ringloom has another version."""
    if version != VERSION:
        raise RingloomError(f"{node()} has ringloom {VERSION}, this machine has {version}")
    begun = time.perf_counter()
    try:
        row = point.labels | predict(**point.values)
    except Exception as error:
        error.add_note(f"at the point {point.labels}")
        raise
    return Outcome(row, node(), time.perf_counter() - begun)


def predict(
    schedule: Named,
    ranks: int,
    hardware: Hardware,
    scenario: Scenario | None = None,
    pass_: Pass | Literal["both"] = "forward",
    trim: Trim = "messages",
    **sizes: Any,
) -> Row:
    """Returns the numbers of `simulate`; for what cannot run, a `reason` and no numbers.

    `sizes` are those of the workload. What needs more memory than the hardware has cannot run.
    """
    SCHEDULES.setdefault(schedule.recipe.name, schedule.recipe)
    try:
        plans = plan(schedule.text, Workload(**sizes), ranks, pass_=pass_, trim=trim)
        prediction = simulate(plans, hardware, scenario)
    except RingloomError as error:
        return {"reason": " ".join(str(error).split())}
    lack = shortage(prediction.peak_bytes, hardware["memory.capacity"])
    return {"reason": lack} if lack else dict(prediction.as_row())
