"""The pictures of one study, kept and redrawn: the report's own, with other facts in them.

What is known first is drawn first: a browser paints a plan's pictures while its times, and those
of the ring that the finding compares them with, are still being predicted.
"""

from dataclasses import dataclass
from functools import lru_cache

from bokeh.models import Range1d

from planner.errors import PlanError
from planner.ir import Plan
from planner.planning import plan
from planner.workload import Workload
from ringloom.comparison import Case, Passes, by_one_bound, passes_of, row_of
from ringloom.explore.choices import Choices
from ringloom.report import heat
from ringloom.report.loads import Cells, links_of, load_of, memory_of
from ringloom.report.memory import MemoryPicture
from ringloom.report.spans import bars_of
from ringloom.report.stepper import StepperPicture, drawable
from ringloom.report.study import Study, in_turn
from ringloom.report.tiles import TileFacts, tile_facts
from ringloom.report.timeline import TimelinePicture
from simulator.hardware import hardware
from simulator.prediction import Prediction, simulate

Plans = Plan | tuple[Plan, Plan]
KEPT = 64  # plans and predictions that are kept for a next time


@lru_cache(maxsize=KEPT)
def planned(schedule: str, work: Workload, ranks: int, pass_: Passes) -> Plans:
    """A verified plan, or a pair."""
    return plan(schedule, work, ranks, pass_=pass_)


@lru_cache(maxsize=KEPT)
def predicted(
    schedule: str, work: Workload, ranks: int, pass_: Passes, name: str, overlap: bool
) -> Prediction:
    """How that plan runs."""
    return simulate(planned(schedule, work, ranks, pass_), hardware(name), overlap=overlap)


@dataclass(frozen=True, eq=False)
class Still:
    """What hardware has no part in: tables of each pass for the stepper, load, traffic."""

    tiles: tuple[TileFacts, ...]
    load: Cells
    links: Cells


@lru_cache(maxsize=KEPT)
def still(schedule: str, work: Workload, ranks: int, pass_: Passes) -> Still:
    """The facts of a plan, or of a pair; raises PlanError for too many tiles to draw."""
    plans = planned(schedule, work, ranks, pass_)
    listed = plans if isinstance(plans, tuple) else (plans,)
    tables = tuple(tile_facts(f"{schedule} {one.pass_}", one) for one in listed)
    if not all(map(drawable, tables)):
        raise PlanError(f"{schedule}: too many tiles to draw; take fewer ranks")
    return Still(tables, load_of(listed), links_of(listed))


def study_of(choices: Choices) -> Study:
    """The chosen schedule, with the ring beside it; raises PlanError as planning does."""
    work, cases = choices.work, []
    for name in dict.fromkeys((choices.schedule, "ring")):
        asked = name, work, choices.ranks, choices.pass_
        found = predicted(*asked, choices.hardware, choices.overlap)
        ring = predicted("ring", *asked[1:], choices.hardware, choices.overlap)
        plans = planned(*asked)
        cases.append(Case(row_of(name, plans, found, ring.makespan, work), plans, found))
    compared = tuple(by_one_bound(cases))
    return Study(work, choices.ranks, choices.hardware, choices.pass_, choices.overlap, compared)


class View:
    """The pictures; `show` fills them."""

    def __init__(self) -> None:
        self.axis = Range1d(0, 1, name="seconds")
        self.timeline = TimelinePicture("timeline-0", self.axis)
        self.stepper = StepperPicture(1)
        self.load = heat.load_picture("load-0")
        self.links = heat.link_picture("links-0")
        self.memory = MemoryPicture(self.axis, 1)
        self.still: Still | None = None

    def show(self, choices: Choices) -> Study:
        """Draw what was chosen; raises PlanError, before anything changes, where it cannot be."""
        self.show_plan(choices)
        self.show_times(choices)
        return study_of(choices)

    def show_plan(self, choices: Choices) -> tuple[TileFacts, ...]:
        """Draw what hardware has no part in, once; raises PlanError where nothing can be drawn."""
        facts = still(choices.schedule, choices.work, choices.ranks, choices.pass_)
        if facts is not self.still:
            self.still = facts
            self.stepper.show(facts.tiles)
            self.load.show(facts.load, heat.most(facts.load))
            self.links.show(facts.links, heat.most(facts.links))
        return facts.tiles

    def show_times(self, choices: Choices) -> None:
        """Draw what is predicted of the plan on its hardware."""
        asked = choices.schedule, choices.work, choices.ranks, choices.pass_
        found = predicted(*asked, choices.hardware, choices.overlap)
        passes = in_turn(choices.schedule, passes_of(planned(*asked), found))
        self.axis.update(start=0, end=1e3 * found.makespan or 1.0)
        self.timeline.show(bars_of(passes), choices.ranks)
        held = memory_of(passes)
        self.memory.show([(choices.schedule, held)] if held else [])
