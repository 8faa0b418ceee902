"""search(work, ranks, hardware)   the best plan that is found, and how far it is from the bound.

seeds      what compare tries: so a search is never slower than compare
found      plans of `planner.search`, whose estimates or kernels may beat the best so far
both       a forward and a backward plan that fit together, of the least sum
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np

from planner.errors import PlanError, Reasons, RingloomError, brief
from planner.given import whole
from planner.ir import Pass, Plan
from planner.layouts import own_name
from planner.masks import Full
from planner.plans import Passes, Plans
from planner.search import BUDGET, Prices, Recipe, Score, Tried, backwards, explore
from planner.search.recipe import TRIM
from planner.verify import verify_pair
from planner.workload import Workload, check_request
from ringloom.gaps import Gap, gaps_of, lost_by
from ringloom.pricing import prices_in
from ringloom.rows import shortage
from ringloom.trials import amount, asked_for
from ringloom.views.units import seconds, size
from simulator.bounds import Bounds
from simulator.costs.kernels import Kernels
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
PAIRED = 5  # of the best forward plans, whose backward passes are tried as well
REASONS = 3  # for which no plan can run, that an error lists
Told = Callable[[str, float, float], None]  # what is tried, the best seconds so far, and their gap


@dataclass(frozen=True, slots=True)
class RunnerUp:
    """The best plan of another family: its recipe, its seconds, and what made it lose.

    Of both passes these are two recipes that fit together, and the sum of their seconds.
    """

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
class Lack:
    """The bytes that a plan needs on a rank, where that is more than there are."""

    bytes: int
    recipe: str
    pass_: Pass

    def __str__(self) -> str:
        return f"{self.recipe}: {size(self.bytes)}"


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
    prices: Prices
    lacking: list["Lack"] = field(default_factory=list)  # of plans that need more than `room`

    def stop(self) -> bool:
        """True once the time limit has passed."""
        return monotonic() - self.start >= self.limit

    def score(self, made: Plan) -> Predicted:
        """Predicts a plan; raises PlanError where a rank has too little memory for it."""
        run = simulate(made, self.machine, self.scenario, record=False)
        if lack := shortage(run.peak_bytes, self.room):
            self.lacking.append(Lack(run.peak_bytes, made.name, made.pass_))
            raise PlanError(lack)
        return Predicted(run.makespan, tuple(run.busy.tolist()), run.peak_bytes, run)

    def floor(self, made: Plan, enough: float) -> float:
        """Returns seconds that a plan is not below, from its kernels alone; `enough` end it."""
        return kernel_seconds(made, self.machine, self.scenario, enough)

    def seeds(self) -> list[Recipe]:
        """Returns what compare tries: its schedules, then the same block by block."""
        names = asked_for(None, self.work, self.ranks, self.machine)
        whole = [] if self.work.mask == Full() else [n for n in names if TRIM not in n]
        split = [f"{name}{TRIM}blocks" for name in whole]
        return [Recipe.parse(name) for name in dict.fromkeys(["ring", *names, *split])]

    def tried(self, pass_: Pass, budget: int) -> list[Tried]:
        """Tries seeds and found plans of one pass."""
        every, best = list[Tried](), math.inf
        where = self.work, self.ranks, pass_, self.prices
        kernels = Kernels(self.scenario.machine(self.machine), self.work, pass_)
        for one in explore(
            *where,
            self.score,
            seeds=self.seeds(),
            pair=kernels.seconds_per_pair,
            floor=self.floor,
            budget=budget,
            layout=self.layout,
            stop=lambda: bool(every) and self.stop(),
        ):
            every.append(one)
            if one.score and one.score.seconds < best:
                best = one.score.seconds
                run = _prediction(one)
                bound = (run.compute_bound if run.outside else run.bound).seconds
            if best < math.inf:
                self.told(str(one.recipe), best, best / bound - 1 if bound else math.inf)
        return every

    def completed(self, forward: Sequence[Tried], backward: Sequence[Tried]) -> list[Tried]:
        """Tries backward passes of the best forward plans that were too slow to be tried alone."""
        known = {x.recipe for x in backward if not x.pruned}
        best = sorted((x for x in forward if x.score), key=_time)[:PAIRED]
        recipes = dict.fromkeys(r for x in best for r in backwards(x.recipe) if r not in known)
        return [*chain(*map(self._alone, recipes))]

    def _alone(self, recipe: Recipe) -> Iterator[Tried]:
        """Tries one backward plan, whatever is faster."""
        yield from explore(
            self.work,
            self.ranks,
            "backward",
            self.prices,
            self.score,
            seeds=[recipe],
            budget=0,
            layout=self.layout,
            stop=self.stop,
        )


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
    seed: int = 0,
    budget: int = BUDGET,
    told: Told = lambda *_: None,
) -> SearchResult:
    """Search the fastest plan of a workload on a machine: compare's schedules, then found plans.

    `memory`: bytes that a rank has for attention, by default the chip's. `time_limit`: seconds
    after which no other candidate of a pass is tried, but its first one; without it the result
    depends on counts alone, and is the same on any machine. `layout`: the layout that tokens
    already have, by its name; without it the search chooses. `seed`: a whole number; as nothing is
    drawn at random, all seeds give the same plan. `budget`: found candidates per pass. `told` is
    called with each candidate, the best seconds so far, and their gap to the bound, to show
    progress. Raises RingloomError for unknown hardware, a wrong scenario and wrong limits,
    PlanError where no plan fits.
    """
    check_request(work, ranks, "search(work, ranks, hardware)")
    if pass_ not in PASSES:
        raise RingloomError(f"a pass is forward, backward or both, not {brief(pass_)}")
    whole("seed", seed)
    budget = whole("budget", budget)
    machine, what_if = find_hardware(hardware), scenario_of(scenario or {})
    room = amount(memory, "memory", "bytes", machine["memory.capacity"])
    limit = amount(time_limit, "time_limit", "seconds", math.inf)
    where = layout and own_name(layout)
    prices = prices_in(what_if, work, ranks, machine)
    one = Search(work, ranks, machine, what_if, room, where, limit, monotonic(), told, prices)
    every = [one.tried(each, budget) for each in PASSES[pass_]]
    if pass_ == "both":
        every[1] += one.completed(*every)
    chosen = _fitting(every, one)
    plans = Plans(**{_plan(x).pass_: _plan(x) for x in chosen})
    prediction = simulate(plans, machine, what_if)
    flat = [*chain(*every)]
    return SearchResult(
        plans,
        tuple(str(x.recipe) for x in chosen),
        prediction,
        tuple(gaps_of(_runs(chosen), machine, what_if)),
        _runner_ups(every, chosen, machine, what_if),
        tried=sum(x.score is not None for x in flat),
        pruned=sum(x.pruned for x in flat),
        refused=sum(x.refused is not None for x in flat),
        complete=not one.stop(),
    )


def _fitting(every: Sequence[list[Tried]], search: Search) -> list[Tried]:
    """Returns the fastest candidate, or of two passes the two of the least sum that fit together.

    Raises PlanError where there is none.
    """
    if not all(any(x.score for x in tried) for tried in every):
        raise Reasons("\n".join(_refusals(every, search)))
    for pair in _by_sum(every):
        if _fit(pair):
            return pair
    raise PlanError("no backward plan that was tried fits a forward plan: leave out the time limit")


def _refusals(every: Sequence[list[Tried]], search: Search) -> Iterator[str]:
    """Yields why no candidate of a pass can run, and the reasons of the best ones."""
    early = f" within {search.limit:g} s" * search.stop()
    failing = next(tried for tried in every if not any(x.score for x in tried))
    pass_ = PASSES["both"][every.index(failing)] if len(every) > 1 else None
    lacking = [lack for lack in search.lacking if pass_ in (None, lack.pass_)]
    plan = f"{pass_} plan" if pass_ else "plan"
    if lacking:
        least = sorted(lacking, key=lambda lack: lack.bytes)[:REASONS]
        room = size(int(search.room))
        yield (
            f"no {plan} that was tried{early} fits: a rank has {room}, and the smallest plan needs"
            f" {size(least[0].bytes)}"
        )
        yield from map(str, least)
    else:
        yield f"no {plan} that was tried{early} can run"
        refused = (x for x in failing if x.refused)
        yield from islice((f"{x.recipe}: {x.refused}" for x in refused), REASONS)


def _fit(pair: Sequence[Tried]) -> bool:
    """True for one candidate, and for two of which the backward plan takes what is left to it."""
    if len(pair) == 1:
        return True
    forward, backward = map(_plan, pair)
    if forward.partition != backward.partition:  # nothing moves tokens between the passes
        return False
    try:
        verify_pair(forward, backward)
    except PlanError:
        return False
    return True


def _by_sum(every: Sequence[list[Tried]]) -> Iterator[list[Tried]]:
    """Yields the scored candidates of one pass, or all pairs of two, those of the least sum first.

    They are sorted by sums that are made as a table: [forward, backward].
    """
    scored = [sorted((x for x in tried if x.score), key=_time) for tried in every]
    sums = np.zeros(())
    for tried in scored:
        sums = np.add.outer(sums, [_time(x) for x in tried])
    for at in np.argsort(sums, axis=None, kind="stable").tolist():
        places = np.unravel_index(at, sums.shape)
        yield [tried[place] for tried, place in zip(scored, places, strict=True)]


def _runner_ups(
    every: Sequence[list[Tried]], winner: list[Tried], machine: Hardware, scenario: Scenario
) -> tuple[RunnerUp, ...]:
    """Returns the best of other families, the fastest first; of two passes those that fit."""
    best = {winner[0].family: winner}
    for pair in _by_sum(every):
        if len(best) > SHOWN:
            break
        if pair[0].family not in best and _fit(pair):
            best[pair[0].family] = pair
    won, *others = (gaps_of(_runs(pair), machine, scenario) for pair in best.values())
    listed = zip([*best.values()][1:], others, strict=True)
    return tuple(
        RunnerUp(pair[0].family, _name(pair), sum(map(_time, pair)), lost_by(gaps, won))
        for pair, gaps in listed
    )


def _name(chosen: Sequence[Tried]) -> str:
    """The recipe of a candidate, or those of two where they differ."""
    return " / ".join(dict.fromkeys(str(x.recipe) for x in chosen))


def _runs(chosen: Sequence[Tried]) -> list[tuple[Plan, Prediction]]:
    return [(_plan(x), _prediction(x)) for x in chosen]


def _time(one: Tried) -> float:
    return one.score.seconds if one.score else math.inf


def _plan(one: Tried) -> Plan:
    assert one.plan is not None
    return one.plan


def _prediction(one: Tried) -> Prediction:
    assert isinstance(one.score, Predicted)
    return one.score.prediction
