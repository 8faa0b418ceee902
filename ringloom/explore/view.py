"""The pictures of the page: the report's, redrawn with new facts.

Pictures of the plan are drawn first: the browser paints them while the server predicts its times
and those of the ring.
"""

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from bokeh.models import Range1d
from numpy.typing import NDArray

from ringloom.comparison import Comparison
from ringloom.explore.choices import Choices
from ringloom.planner.planning import plan
from ringloom.planner.plans import Passes, Plans
from ringloom.planner.schedules import comparable
from ringloom.planner.workload import Workload
from ringloom.report.facts.tiles import TileFacts, tables
from ringloom.report.pictures.stepper import StepperPicture
from ringloom.report.pictures.timeline import TimelinePicture
from ringloom.report.pictures.totals import LoadPicture, MemoryPicture, TrafficPicture
from ringloom.rows import Refusal, Row, shortage
from ringloom.simulator.confidence import unvalidated
from ringloom.simulator.facts import bars_of, by_nodes, over_average, traffic_of, usage, work_of
from ringloom.simulator.hardware import hardware
from ringloom.simulator.pictures import FEW
from ringloom.simulator.prediction import simulate
from ringloom.trials import Case, against, case, feasible, on_machine

MOST_LANES = 128  # ranks of a timeline
KEPT = 64  # cached plans and predictions (benchmarks/bench_explore.py)


@lru_cache(maxsize=KEPT)
def planned(schedule: str, work: Workload, ranks: int, pass_: Passes) -> Plans:
    """Returns the verified plan, or both plans of both passes."""
    return Plans.of(plan(schedule, work, ranks, pass_=pass_))


@lru_cache(maxsize=KEPT)
def predicted(choices: Choices) -> Case:
    """Simulates the plan of the choices."""
    plans = planned(choices.schedule, choices.work, choices.ranks, choices.pass_)
    return _case(choices, plans)


def _case(choices: Choices, plans: Plans) -> Case:
    prediction = simulate(plans, hardware(choices.hardware), choices.scenario)
    return case(choices.schedule, plans, prediction)


@dataclass(frozen=True, eq=False)
class PlanFacts:
    """Facts that do not depend on hardware: tables for the stepper, load, traffic.

    `skipped` is a sentence on passes without tables, "" if all have one.
    """

    tiles: tuple[TileFacts, ...]
    skipped: str
    work: NDArray[np.int64]
    traffic: NDArray[np.int64]


@lru_cache(maxsize=KEPT)
def plan_facts(schedule: str, work: Workload, ranks: int, pass_: Passes) -> PlanFacts:
    """Returns the facts of a plan, or of both plans of both passes."""
    plans = planned(schedule, work, ranks, pass_)
    passes = [(f"{schedule} {one.pass_}", one) for one in plans]
    return PlanFacts(*tables(passes), work_of(plans), traffic_of(plans))


def compared(choices: Choices) -> Comparison:
    """Compares the chosen schedule with the ring; raises PlanError as planning does."""
    ring, names = predicted(_ring(choices)), dict.fromkeys((choices.schedule, "ring"))
    cases = (against(ring, predicted(replace(choices, schedule=name))) for name in names)
    about = choices.work, choices.ranks, choices.hardware, choices.pass_, choices.scenario
    said = unvalidated(hardware(choices.hardware))
    return Comparison(*about, tuple(cases), unvalidated=said)


def finding(choices: Choices, comparison: Comparison) -> str:
    """Returns the comparison in words, preceded by a lack of memory, if any."""
    room = hardware(choices.hardware)["memory.capacity"]
    lack = shortage(predicted(choices).row.peak_bytes, room)
    said = f"{choices.schedule} {lack}." if lack else ""
    unsure = comparison.unvalidated if len(comparison.cases) > 1 else ""
    return " ".join(filter(None, (said, comparison.why, unsure)))


def _ring(choices: Choices) -> Choices:
    return replace(choices, schedule="ring")


def others(choices: Choices) -> list[str]:
    """Returns the schedules to compare with, without the chosen one and the ring."""
    machine = choices.scenario.nodes(hardware(choices.hardware), choices.ranks)
    named = comparable(choices.work, choices.ranks, machine.ranks_per_node)
    names = dict.fromkeys(on_machine(name, choices.ranks, machine) for name in named)
    return [name for name in names if name not in (choices.schedule, "ring")]


def row_of(choices: Choices) -> Row | Refusal:
    """Returns a row of the table, or why there is none; nothing of it is cached."""

    def made(name: str) -> Case:
        given = plan(name, choices.work, choices.ranks, pass_=choices.pass_)
        return _case(choices, Plans.of(given))

    one = feasible(choices.schedule, made, hardware(choices.hardware)["memory.capacity"])
    return one if isinstance(one, Refusal) else against(predicted(_ring(choices)), one).row


class View:
    """The pictures of the latest choices."""

    def __init__(self) -> None:
        self.axis = Range1d(0, 1, name="seconds")
        self.timeline = TimelinePicture("timeline-0", self.axis)
        self.stepper = StepperPicture(1)
        self.load = LoadPicture("load-0")
        self.links = TrafficPicture("links-0")
        self.memory = MemoryPicture(self.axis, 1)
        self.facts: PlanFacts | None = None

    def show_plan(self, choices: Choices) -> PlanFacts:
        """Draws what does not depend on hardware; raises PlanError as planning does."""
        facts = plan_facts(choices.schedule, choices.work, choices.ranks, choices.pass_)
        if facts is not self.facts:
            self.facts = facts
            if facts.tiles:
                self.stepper.show(facts.tiles)
            table, ranks_per_cell = by_nodes(
                facts.traffic, 1
            )  # with many ranks, a cell covers several
            self.load.show(facts.work, over_average(facts.work).max())
            self.links.show(table, ranks_per_cell, float(table.max()))
        return facts

    def show_times(self, choices: Choices, every: bool = False) -> None:
        """Draws the predicted timeline and memory, of `every` rank or a few of many."""
        shown, many = predicted(choices), choices.ranks > MOST_LANES
        ranks = shown.prediction.representatives(choices.ranks if every and not many else FEW)
        self.axis.update(start=0, end=1e3 * shown.row.makespan_s or 1.0)
        bars, makespan = bars_of(shown.prediction, ranks), shown.row.makespan_s
        self.timeline.show(bars, choices.ranks, ranks, makespan=makespan)
        held = usage(shown.prediction)
        self.memory.show([(choices.schedule, held)] if held else [])
