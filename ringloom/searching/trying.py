"""Search(...)   tries the candidates of a pass, then missing other passes of the best ones."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from time import monotonic

from ringloom.planner.errors import PlanError
from ringloom.planner.ir import Pass, Plan
from ringloom.planner.masks import Full
from ringloom.planner.plans import Passes
from ringloom.planner.search import Prices, Recipe, Score, Tried, backwards, explore
from ringloom.planner.search.recipe import TRIM
from ringloom.planner.workload import Workload
from ringloom.rows import shortage
from ringloom.searching.pairs import fastest
from ringloom.simulator.costs.kernels import Kernels
from ringloom.simulator.hardware import Hardware
from ringloom.simulator.prediction import Prediction, kernel_seconds, simulate
from ringloom.simulator.scenario import Scenario
from ringloom.trials import asked_for
from ringloom.views.units import size

Told = Callable[
    [str, float, float], None
]  # candidate, best seconds so far, and their gap to the bound
PASSES: dict[Passes, tuple[Pass, ...]] = {
    "forward": ("forward",),
    "backward": ("backward",),
    "both": ("forward", "backward"),
}


@dataclass(frozen=True, slots=True)
class Lack:
    """A plan that needs more memory per rank than there is, and how many bytes."""

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
    """A search for one workload and machine; `room` in bytes, `limit` in seconds."""

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
    lacking: list["Lack"] = field(default_factory=list)  # plans that need more than `room`

    def stop(self) -> bool:
        """Returns True once the time limit has passed."""
        return monotonic() - self.start >= self.limit

    def score(self, made: Plan) -> Predicted:
        """Simulates a plan; raises PlanError if a rank has too little memory for it."""
        run = simulate(made, self.machine, self.scenario, record=False)
        if lack := shortage(run.peak_bytes, self.room):
            self.lacking.append(Lack(run.peak_bytes, made.name, made.pass_))
            raise PlanError(lack)
        return Predicted(run.makespan, tuple(run.busy.tolist()), run.peak_bytes, run)

    def floor(self, made: Plan, enough: float) -> float:
        """Returns a lower bound in seconds from the kernels alone; may stop early at `enough`."""
        return kernel_seconds(made, self.machine, self.scenario, enough)

    def seeds(self) -> list[Recipe]:
        """Returns the schedules of compare, then the same with messages split block by block."""
        machine = self.scenario.nodes(self.machine, self.ranks)
        names = asked_for(None, self.work, self.ranks, machine)
        whole = [] if self.work.mask == Full() else [n for n in names if TRIM not in n]
        split = [f"{name}{TRIM}blocks" for name in whole]
        return [Recipe.parse(name) for name in dict.fromkeys(["ring", *names, *split])]

    def tried(self, pass_: Pass, budget: int) -> list[Tried]:
        """Tries the seeds and the built plans of one pass."""
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
                run = prediction_of(one)
                bound = (run.compute_bound if run.bound_inapplicable_reason else run.bound).seconds
            if best < math.inf:
                self.told(str(one.recipe), best, best / bound - 1 if bound else math.inf)
        return every

    def completed(self, forward: Sequence[Tried], backward: Sequence[Tried]) -> list[list[Tried]]:
        """Tries the other pass of the best plans of each pass, where it was pruned before.

        For built plans, only backward passes are added.
        """
        named = (x for x in fastest(backward) if isinstance(x.recipe.schedule, str))
        missing = [
            (r for x in named for r in backwards(x.recipe)),
            (r for x in fastest(forward) for r in backwards(x.recipe)),
        ]
        every = []
        for pass_, tried, recipes in zip(PASSES["both"], (forward, backward), missing, strict=True):
            known = {x.recipe for x in tried if not x.pruned}
            added = (self._alone(r, pass_) for r in dict.fromkeys(recipes) if r not in known)
            every.append([*tried, *chain(*added)])
        return every

    def _alone(self, recipe: Recipe, pass_: Pass) -> Iterator[Tried]:
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
            stop=self.stop,
        )


def prediction_of(one: Tried) -> Prediction:
    assert isinstance(one.score, Predicted)
    return one.score.prediction
