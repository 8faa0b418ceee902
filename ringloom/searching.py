"""search(work, ranks, hardware)   the best plan that is found, and how far it is from the bound.

seeds      what compare tries: so a search is never slower than compare
found      plans of `planner.search`, whose estimates or kernels may beat the best so far
both       a forward and a backward plan that fit together, of the least sum
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np

from planner.errors import PlanError, RingloomError
from planner.ir import Pass, Plan
from planner.layouts import own_name
from planner.masks import Full
from planner.plans import Passes, Plans
from planner.search import BUDGET, Prices, Recipe, Score, Tried, explore
from planner.verify import verify_pair
from planner.workload import Workload, check_request
from ringloom.gaps import Gap, gap_of, lost_by
from ringloom.pricing import prices_in
from ringloom.rows import shortage
from ringloom.trials import SPLIT, asked_for
from ringloom.views.units import seconds
from simulator.bounds import Bounds
from simulator.hardware import Hardware
from simulator.hardware import hardware as find_hardware
from simulator.prediction import Prediction, kernel_seconds, simulate
from simulator.scenario import Scenario, scenario_of

PASSES: dict[Passes, tuple[Pass, ...]] = {
    "forward": ("forward",),
    "backward": ("backward",),
    "both": ("forward", "backward"),
}
SHOWN = 6  # runner-ups
Told = Callable[[str, float, float], None]  # what is tried, the best seconds so far, and their gap


@dataclass(frozen=True, slots=True)
class RunnerUp:
    """The best plan of another family: its recipe, its seconds, and what made it lose."""

    family: str
    recipe: str
    makespan: float
    lost_by: str


@dataclass(frozen=True, eq=False)
class SearchResult:
    """The fastest plans that were found for a workload on a machine, and what was tried.

    `recipes`: the text that rebuilds each plan on this machine, which is also its name. `why`: the
    gap to the bound in parts that add up to it, one `Gap` per pass. `tried` candidates were scored,
    `pruned` ones could not be the best, `refused` ones could not be built or did not fit.
    `complete`: the time limit did not end the search.
    """

    plans: Plans
    recipes: tuple[str, ...]
    prediction: Prediction
    why: tuple[Gap, ...]
    runner_ups: tuple[RunnerUp, ...]
    tried: int
    pruned: int
    refused: int
    complete: bool

    @property
    def name(self) -> str:
        """The recipe, or those of the forward and the backward plan where they differ."""
        return " / ".join(dict.fromkeys(self.recipes))

    @property
    def makespan(self) -> float:
        """The predicted seconds, summed over passes."""
        return self.prediction.makespan

    @property
    def least(self) -> Bounds:
        """The bound that holds for the plans, whatever their class, and why."""
        return self.prediction.compute_bound if self.prediction.outside else self.prediction.bound

    @property
    def bound(self) -> float:
        """Seconds that no such plan is below: of its class, or of compute and memory alone."""
        return self.least.seconds

    @property
    def gap(self) -> float:
        """The time over the bound, as a share of the bound: 0.1 is a tenth."""
        return self.makespan / self.bound - 1 if self.bound else math.inf

    def __repr__(self) -> str:
        time, over = seconds(self.makespan), f"{1 + self.gap:.2f} times the bound"
        return f"<SearchResult {self.name}: {time}, {over}, {self.tried} tried>"

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "recipes": list(self.recipes),
            "makespan_s": self.makespan,
            "bound_s": self.bound,
            "bound_why": self.least.why,
            "bound_reason": self.prediction.outside,
            "gap": self.gap,
            "peak_bytes": self.prediction.peak_bytes,
            "max_bytes_sent": self.prediction.max_bytes_sent,
            "why": [gap.as_dict() for gap in self.why],
            "runner_ups": [
                {f: getattr(one, f) for f in RunnerUp.__slots__} for one in self.runner_ups
            ],
            "tried": self.tried,
            "pruned": self.pruned,
            "refused": self.refused,
            "complete": self.complete,
        }


@dataclass(frozen=True, slots=True)
class Predicted(Score):
    """A score, with the prediction that it comes from."""

    prediction: Prediction


@dataclass(frozen=True)
class Search:
    """The workload and the machine of a search; `room` in bytes, `limit` in seconds."""

    work: Workload
    ranks: int
    machine: Hardware
    scenario: Scenario
    room: float
    layout: str | None
    limit: float
    start: float
    told: Told

    def stop(self) -> bool:
        """True once the time limit has passed."""
        return monotonic() - self.start >= self.limit

    def score(self, made: Plan) -> Predicted:
        """Predicts a plan; raises PlanError where a rank has too little memory for it."""
        run = simulate(made, self.machine, self.scenario, record=False)
        if lack := shortage(run.peak_bytes, self.room):
            raise PlanError(lack)
        return Predicted(run.makespan, tuple(run.busy.tolist()), run.peak_bytes, run)

    def floor(self, made: Plan, enough: float) -> float:
        """Returns seconds that a plan is not below, from its kernels alone; `enough` end it."""
        return kernel_seconds(made, self.machine, self.scenario, enough)

    def prices(self, pass_: Pass) -> Prices:
        """Returns what the planner is told of the machine."""
        return prices_in(self.scenario, self.work, self.ranks, self.machine, pass_)

    def seeds(self) -> list[Recipe]:
        """Returns what compare tries: its schedules, then the same block by block."""
        names = asked_for(None, self.work, self.ranks, self.machine)
        whole = [] if self.work.mask == Full() else [n for n in names if SPLIT not in n]
        split = [f"{name}{SPLIT}blocks" for name in whole]
        return [Recipe.parse(name) for name in dict.fromkeys(["ring", *names, *split])]

    def tried(self, pass_: Pass, budget: int) -> list[Tried]:
        """Tries seeds and found plans of one pass."""
        every, best = list[Tried](), math.inf
        for one in explore(
            self.work,
            self.ranks,
            pass_,
            self.prices(pass_),
            self.score,
            seeds=self.seeds(),
            floor=self.floor,
            budget=budget,
            layout=self.layout,
            stop=lambda: self.stop() and any(x.score for x in every),
        ):
            every.append(one)
            if one.score and one.score.seconds < best:
                best = one.score.seconds
                bound = _prediction(one).bound.seconds
            if best < math.inf:
                self.told(str(one.recipe), best, best / bound - 1 if bound else math.inf)
        return every


def search(
    work: Workload,
    ranks: int,
    hardware: Hardware | str | Path,
    *,
    pass_: Passes = "forward",
    memory: float | None = None,
    time_limit: float | None = None,
    scenario: Scenario | Mapping[str, Any] | None = None,
    layout: str | None = None,
    budget: int = BUDGET,
    told: Told = lambda *_: None,
) -> SearchResult:
    """Search the fastest plan of a workload on a machine: compare's schedules, then found plans.

    `memory`: bytes that a rank has for attention, by default the chip's. `time_limit`: seconds
    after which no other candidate is tried, once one fits; without it the result depends on counts
    alone, and is the same on any machine. `layout`: the layout that tokens already have, by its
    name; without it the search chooses. `budget`: found candidates per pass. `told` is called with
    each candidate, the best seconds so far, and their gap to the bound, to show progress.
    Raises RingloomError for unknown hardware and a wrong scenario, PlanError where no plan fits.
    """
    check_request(work, ranks, "search(work, ranks, hardware)")
    if pass_ not in PASSES:
        raise RingloomError(f"a pass is forward, backward or both, not {pass_!r}")
    machine, what_if = find_hardware(hardware), scenario_of(scenario or {})
    room = machine["memory.capacity"] if memory is None else float(memory)
    limit = math.inf if time_limit is None else float(time_limit)
    where = layout and own_name(layout)
    one = Search(work, ranks, machine, what_if, room, where, limit, monotonic(), told)
    every = [one.tried(each, budget) for each in PASSES[pass_]]
    chosen = _fitting(every)
    plans = Plans(**{_plan(x).pass_: _plan(x) for x in chosen})
    prediction = simulate(plans, machine, what_if)
    flat = [*chain(*every)]
    return SearchResult(
        plans,
        tuple(str(x.recipe) for x in chosen),
        prediction,
        tuple(gap_of(_plan(x), _prediction(x), machine, what_if) for x in chosen),
        _runner_ups(every[0], chosen[0], machine, what_if),
        tried=sum(x.score is not None for x in flat),
        pruned=sum(x.pruned for x in flat),
        refused=sum(x.refused is not None for x in flat),
        complete=not one.stop(),
    )


def _fitting(every: Sequence[list[Tried]]) -> list[Tried]:
    """Returns the fastest candidate, or of two passes the two of the least sum that fit together.

    Raises PlanError where there is none.
    """
    scored = [sorted((x for x in tried if x.score), key=_time) for tried in every]
    if not all(scored):
        reasons = dict.fromkeys(f"{x.recipe}: {x.refused}" for t in every for x in t if x.refused)
        raise PlanError("\n".join(["no plan that was tried can run", *reasons]))
    if len(scored) == 1:
        return scored[0][:1]
    for pair in _by_sum(*scored):
        forward, backward = map(_plan, pair)
        if forward.partition != backward.partition:  # nothing moves tokens between the passes
            continue
        try:
            verify_pair(forward, backward)
        except PlanError:
            continue
        return pair
    raise PlanError("no backward plan that was tried fits a forward plan: leave out the time limit")


def _by_sum(forward: list[Tried], backward: list[Tried]) -> Iterator[list[Tried]]:
    """Yields all pairs, those of the least sum first."""
    sums = np.add.outer([_time(x) for x in forward], [_time(x) for x in backward])
    for at in np.argsort(sums, axis=None, kind="stable").tolist():
        first, second = divmod(at, len(backward))
        yield [forward[first], backward[second]]


def _runner_ups(
    tried: list[Tried], winner: Tried, machine: Hardware, scenario: Scenario
) -> tuple[RunnerUp, ...]:
    """Returns the best of other families, the fastest first."""
    best = dict[str, Tried]()
    for one in sorted((x for x in tried if x.score), key=_time):
        best.setdefault(one.family, one)
    won = gap_of(_plan(winner), _prediction(winner), machine, scenario)
    others = [x for x in best.values() if x.family != winner.family][:SHOWN]
    gaps = [gap_of(_plan(x), _prediction(x), machine, scenario) for x in others]
    return tuple(
        RunnerUp(x.family, str(x.recipe), _time(x), lost_by(gap, won))
        for x, gap in zip(others, gaps, strict=True)
    )


def _time(one: Tried) -> float:
    return one.score.seconds if one.score else math.inf


def _plan(one: Tried) -> Plan:
    assert one.plan is not None
    return one.plan


def _prediction(one: Tried) -> Prediction:
    assert isinstance(one.score, Predicted)
    return one.score.prediction
