"""SearchResult   the plans of a search, and what it tried."""

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
    """The best plan of another family: its recipe, its seconds, and where it loses most time.

    For both passes: two recipes that fit together, and their total seconds.
    """

    family: str
    recipe: str
    makespan: float
    lost_by: str


@dataclass(frozen=True, eq=False)
class SearchResult:
    """The fastest plans found for a workload on a machine, and what was tried.

    `recipes`: the text that rebuilds each plan on this machine, which is also its name. `why`: the
    time above the bound, split into parts; one `Gap` per pass. `tried`: number of simulated
    candidates; `pruned`: those that could not be the best; `refused`: those that could not be built
    or did not fit. `complete`: False if the time limit ended the search.
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
        """Returns the recipe, or both recipes if forward and backward differ."""
        return " / ".join(dict.fromkeys(self.recipes))

    @property
    def makespan(self) -> float:
        """Returns the predicted seconds, summed over passes."""
        return self.prediction.makespan

    @property
    def least(self) -> Bounds:
        """Returns the lower bound that applies to these plans, with the reason."""
        return (
            self.prediction.compute_bound
            if self.prediction.bound_inapplicable_reason
            else self.prediction.bound
        )

    @property
    def bound(self) -> float:
        """Returns the lower bound in seconds, from compute and memory alone if no other applies."""
        return self.least.seconds

    @property
    def gap(self) -> float:
        """Returns the time above the bound relative to the bound: 0.1 is 10%."""
        return self.makespan / self.bound - 1 if self.bound else math.inf

    def __repr__(self) -> str:
        time, over = seconds(self.makespan), f"{1 + self.gap:.2f} times the bound"
        return f"<SearchResult {self.name}: {time}, {over}, {self.tried} tried>"

    def as_dict(self) -> dict[str, Any]:
        """Returns plain values for JSON."""
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
