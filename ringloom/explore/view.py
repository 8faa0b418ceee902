"""The pictures of the page, which are redrawn for new choices.

Pictures of the plan are drawn first, so that the browser paints them while the server predicts the
times of the plan and of ring.
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
from ringloom.planner.schedules import comparable_schedules
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
from ringloom.trials import Case, case_of, case_or_refusal, with_node_size, with_speedup

MOST_LANES = 128  # ranks of a timeline
KEPT = 64  # cached plans and predictions (benchmarks/bench_explore.py)


@lru_cache(maxsize=KEPT)
def make_plans(schedule: str, work: Workload, ranks: int, pass_: Passes) -> Plans:
    """Returns the verified plan, or the two plans of both passes."""
    return Plans.of(plan(schedule, work, ranks, pass_=pass_))


@lru_cache(maxsize=KEPT)
def predict(choices: Choices) -> Case:
    """Simulates the plan of the choices."""
    plans = make_plans(choices.schedule, choices.work, choices.ranks, choices.pass_)
    return _case(choices, plans)


def _case(choices: Choices, plans: Plans) -> Case:
    prediction = simulate(plans, hardware(choices.hardware), choices.scenario)
    return case_of(choices.schedule, plans, prediction)


@dataclass(frozen=True, eq=False)
class PlanFacts:
    """Numbers that do not depend on hardware: tiles, load and traffic.

    `skipped` is a sentence on passes without tiles, "" if all have some.
    """

    tiles: tuple[TileFacts, ...]
    skipped: str
    work: NDArray[np.int64]
    traffic: NDArray[np.int64]


@lru_cache(maxsize=KEPT)
def plan_facts(schedule: str, work: Workload, ranks: int, pass_: Passes) -> PlanFacts:
    """Returns the facts of a plan, or of the two plans of both passes."""
    plans = make_plans(schedule, work, ranks, pass_)
    titled = [(f"{schedule} {plan.pass_}", plan) for plan in plans]
    return PlanFacts(*tables(titled), work_of(plans), traffic_of(plans))


def compare_with_ring(choices: Choices) -> Comparison:
    """Compares the chosen schedule with ring; raises PlanError as planning does."""
    ring, names = predict(_ring(choices)), dict.fromkeys((choices.schedule, "ring"))
    cases = (with_speedup(predict(replace(choices, schedule=name)), ring) for name in names)
    setting = choices.work, choices.ranks, choices.hardware, choices.pass_, choices.scenario
    warning = unvalidated(hardware(choices.hardware))
    return Comparison(*setting, tuple(cases), unvalidated=warning)


def finding(choices: Choices, comparison: Comparison) -> str:
    """Returns the result of the comparison in words, after a warning if memory is too small."""
    capacity = hardware(choices.hardware)["memory.capacity"]
    lack = shortage(predict(choices).row.peak_bytes, capacity)
    memory_warning = f"{choices.schedule} {lack}." if lack else ""
    warning = comparison.unvalidated if len(comparison.cases) > 1 else ""
    return " ".join(filter(None, (memory_warning, comparison.why, warning)))


def _ring(choices: Choices) -> Choices:
    return replace(choices, schedule="ring")


def other_schedules(choices: Choices) -> list[str]:
    """Returns the schedules to compare with, without the chosen one and ring."""
    machine = choices.scenario.nodes(hardware(choices.hardware), choices.ranks)
    schedules = comparable_schedules(choices.work, choices.ranks, machine.ranks_per_node)
    names = dict.fromkeys(with_node_size(name, choices.ranks, machine) for name in schedules)
    return [name for name in names if name not in (choices.schedule, "ring")]


def row_of(choices: Choices) -> Row | Refusal:
    """Returns a row of the table, or the reason why there is none, without caching plans."""

    def make_case(name: str) -> Case:
        plans = Plans.of(plan(name, choices.work, choices.ranks, pass_=choices.pass_))
        return _case(choices, plans)

    result = case_or_refusal(
        choices.schedule, make_case, hardware(choices.hardware)["memory.capacity"]
    )
    if isinstance(result, Refusal):
        return result
    return with_speedup(result, predict(_ring(choices))).row


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
            # With many ranks, a cell covers several.
            table, ranks_per_cell = by_nodes(facts.traffic, 1)
            self.load.show(facts.work, over_average(facts.work).max())
            self.links.show(table, ranks_per_cell, float(table.max()))
        return facts

    def show_times(self, choices: Choices, all_ranks: bool = False) -> None:
        """Draws the predicted timeline and memory; of many ranks a few, unless `all_ranks` is set.

        `all_ranks` has no effect on more than MOST_LANES ranks.
        """
        case, show_all = predict(choices), all_ranks and choices.ranks <= MOST_LANES
        ranks = case.prediction.representatives(choices.ranks if show_all else FEW)
        self.axis.update(start=0, end=1e3 * case.row.makespan_s or 1.0)
        bars, makespan = bars_of(case.prediction, ranks), case.row.makespan_s
        self.timeline.show(bars, choices.ranks, ranks, makespan=makespan)
        used = usage(case.prediction)
        self.memory.show([(choices.schedule, used)] if used else [])
