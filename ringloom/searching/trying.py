"""Search(...)   tries the candidates of a pass, then the other pass of the best candidates."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from time import monotonic

from ringloom.planner.errors import PlanError
from ringloom.planner.ir import Pass, Plan
from ringloom.planner.masks import Full
from ringloom.planner.plans import Passes
from ringloom.planner.search import Candidate, Prices, Recipe, Score, backward_recipes, explore
from ringloom.planner.search.recipe import TRIM
from ringloom.planner.workload import Workload
from ringloom.rows import shortage
from ringloom.searching.pairs import fastest
from ringloom.simulator.costs.kernels import Kernels
from ringloom.simulator.hardware import Hardware
from ringloom.simulator.prediction import Prediction, kernel_seconds, simulate
from ringloom.simulator.scenario import Scenario
from ringloom.trials import schedule_names
from ringloom.views.units import size

Report = Callable[[str, float, float], None]  # candidate, best seconds so far, gap to the bound
PASSES: dict[Passes, tuple[Pass, ...]] = {
    "forward": ("forward",),
    "backward": ("backward",),
    "both": ("forward", "backward"),
}


@dataclass(frozen=True, slots=True)
class TooLarge:
    """A plan that needs more memory per rank than the limit."""

    bytes: int
    recipe: str
    pass_: Pass

    def __str__(self) -> str:
        return f"{self.recipe}: {size(self.bytes)}"


@dataclass(frozen=True, slots=True)
class Predicted(Score):
    """A score with its prediction."""

    prediction: Prediction


@dataclass(frozen=True)
class Search:
    """A search for one workload and machine; `memory_limit` in bytes, `time_limit` in seconds."""

    work: Workload
    ranks: int
    machine: Hardware
    scenario: Scenario
    memory_limit: float
    layout: str | None
    time_limit: float
    start: float
    report: Report
    prices: Prices
    too_large: list[TooLarge] = field(default_factory=list)

    def is_out_of_time(self) -> bool:
        """Returns True once the time limit has passed."""
        return monotonic() - self.start >= self.time_limit

    def score(self, plan: Plan) -> Predicted:
        """Simulates a plan; raises PlanError if it needs more memory than a rank has."""
        run = simulate(plan, self.machine, self.scenario, record=False)
        if lack := shortage(run.peak_bytes, self.memory_limit):
            self.too_large.append(TooLarge(run.peak_bytes, plan.name, plan.pass_))
            raise PlanError(lack)
        return Predicted(run.makespan, tuple(run.busy.tolist()), run.peak_bytes, run)

    def floor(self, plan: Plan, enough: float) -> float:
        """Returns a lower bound [seconds] from the kernels alone; may stop early at `enough`."""
        return kernel_seconds(plan, self.machine, self.scenario, enough)

    def seeds(self) -> list[Recipe]:
        """Returns the schedules of compare, then the same with messages split block by block."""
        machine = self.scenario.nodes(self.machine, self.ranks)
        names = schedule_names(None, self.work, self.ranks, machine)
        unsplit = [] if self.work.mask == Full() else [n for n in names if TRIM not in n]
        split = [f"{name}{TRIM}blocks" for name in unsplit]
        return [Recipe.parse(name) for name in dict.fromkeys(["ring", *names, *split])]

    def try_pass(self, pass_: Pass, budget: int) -> list[Candidate]:
        """Tries the seeds and the built plans of one pass."""
        tried, best = list[Candidate](), math.inf
        kernels = Kernels(self.scenario.machine(self.machine), self.work, pass_)
        for candidate in explore(
            self.work,
            self.ranks,
            pass_,
            self.prices,
            self.score,
            seeds=self.seeds(),
            pair=kernels.seconds_per_pair,
            floor=self.floor,
            budget=budget,
            layout=self.layout,
            stop=lambda: bool(tried) and self.is_out_of_time(),
        ):
            tried.append(candidate)
            if candidate.score and candidate.score.seconds < best:
                best = candidate.score.seconds
                run = prediction_of(candidate)
                bound = (run.compute_bound if run.bound_inapplicable_reason else run.bound).seconds
            if best < math.inf:
                self.report(str(candidate.recipe), best, best / bound - 1 if bound else math.inf)
        return tried

    def complete_pairs(
        self, forward: Sequence[Candidate], backward: Sequence[Candidate]
    ) -> list[list[Candidate]]:
        """Tries the other pass of the best plans of each pass if it was pruned before.

        For built plans, only backward passes are added.
        """
        schedules = (x for x in fastest(backward) if isinstance(x.recipe.schedule, str))
        missing = [
            (r for x in schedules for r in backward_recipes(x.recipe)),
            (r for x in fastest(forward) for r in backward_recipes(x.recipe)),
        ]
        completed = []
        for pass_, tried, recipes in zip(PASSES["both"], (forward, backward), missing, strict=True):
            scored = {x.recipe for x in tried if not x.pruned}
            added = (self._try_one(r, pass_) for r in dict.fromkeys(recipes) if r not in scored)
            completed.append([*tried, *chain(*added)])
        return completed

    def _try_one(self, recipe: Recipe, pass_: Pass) -> Iterator[Candidate]:
        """Tries one plan without pruning."""
        yield from explore(
            self.work,
            self.ranks,
            pass_,
            self.prices,
            self.score,
            seeds=[recipe],
            budget=0,
            layout=self.layout,
            stop=self.is_out_of_time,
        )


def prediction_of(candidate: Candidate) -> Prediction:
    assert isinstance(candidate.score, Predicted)
    return candidate.score.prediction
