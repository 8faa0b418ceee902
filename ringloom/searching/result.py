"""SearchResult   the plans that a search found, and what it tried."""

import math
from dataclasses import dataclass
from typing import Any

from ringloom.planner.plans import Plans
from ringloom.searching.gaps import Gap
from ringloom.simulator.bounds import Bounds
from ringloom.simulator.prediction import Prediction
from ringloom.views.units import seconds


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
        return (
            self.prediction.compute_bound
            if self.prediction.bound_inapplicable_reason
            else self.prediction.bound
        )

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
            "bound_reason": self.prediction.bound_inapplicable_reason,
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
