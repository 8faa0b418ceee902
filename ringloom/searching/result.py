"""SearchResult   the plans of a search, their bound, and the counts of candidates."""

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
    """The best plan of another family: its recipe, its seconds, and its largest loss of time.

    For both passes, `recipe` names two plans that fit together, and `makespan` is their total.
    """

    family: str
    recipe: str
    makespan: float
    lost_by: str


@dataclass(frozen=True, eq=False)
class SearchResult:
    """The fastest plans of a search for a workload on a machine.

    `recipes`: the text that rebuilds each plan on this machine, which is also its name. `why`: the
    time above the bound, split into parts; one `Gap` per pass. Numbers of candidates: `tried` were
    simulated, `pruned` could not be the best, `refused` could not be built or did not fit.
    `complete`: False if the time limit ended the search.
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
    def applicable_bound(self) -> Bounds:
        """Returns the lower bound that applies to these plans, and what sets it."""
        return (
            self.prediction.compute_bound
            if self.prediction.bound_inapplicable_reason
            else self.prediction.bound
        )

    @property
    def bound(self) -> float:
        """Returns the applicable lower bound in seconds."""
        return self.applicable_bound.seconds

    @property
    def gap(self) -> float:
        """Returns the time above the bound relative to the bound: 0.1 is 10%."""
        return self.makespan / self.bound - 1 if self.bound else math.inf

    def __repr__(self) -> str:
        time, multiple = seconds(self.makespan), f"{1 + self.gap:.2f} times the bound"
        return f"<SearchResult {self.name}: {time}, {multiple}, {self.tried} tried>"

    def as_dict(self) -> dict[str, Any]:
        """Returns plain values for JSON."""
        return {
            "recipes": list(self.recipes),
            "makespan_s": self.makespan,
            "bound_s": self.bound,
            "bound_why": self.applicable_bound.why,
            "bound_reason": self.prediction.bound_inapplicable_reason,
            "gap": self.gap,
            "peak_bytes": self.prediction.peak_bytes,
            "max_bytes_sent": self.prediction.max_bytes_sent,
            "why": [gap.as_dict() for gap in self.why],
            "runner_ups": [
                {name: getattr(plan, name) for name in RunnerUp.__slots__}
                for plan in self.runner_ups
            ],
            "tried": self.tried,
            "pruned": self.pruned,
            "refused": self.refused,
            "complete": self.complete,
        }
