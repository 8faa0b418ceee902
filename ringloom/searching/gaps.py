"""gaps_of(runs, ...)   splits the time above the lower bound into parts.

The parts add up to the time above the bound and refer to the critical rank, which ends last:

waiting      run time minus attends and merges
merges       merges of partial results, in attends and on arrival
launches     kernel launches
kernels      half-empty tiles and kernels below full rate
imbalance    more pairs than the average rank, relative to its speed
other bound  average compute time minus the bound, if memory or links set the bound
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ringloom.planner.ir import Plan
from ringloom.simulator.costs.prices import Costs
from ringloom.simulator.facts import work_of
from ringloom.simulator.hardware import Hardware
from ringloom.simulator.prediction import Prediction
from ringloom.simulator.scenario import Scenario

LABELS = {
    "waiting": "waiting for transfers",
    "merges": "merging partial results",
    "launches": "launching kernels",
    "kernels": "half-empty tiles and kernels below full rate",
    "imbalance": "more work than the average rank",
    "other_bound": "a bound of links or memory, above compute",
}


@dataclass(frozen=True, slots=True)
class Gap:
    """The time of one pass above its bound [seconds], split into parts on the critical rank.

    `parts` add up to `seconds`. A negative part is time that the bound includes but the rank does
    not need, because it has fewer pairs than average or because links set the bound.
    """

    pass_: str
    rank: int
    seconds: float
    parts: dict[str, float]

    def as_dict(self) -> dict[str, object]:
        """Returns plain values for JSON."""
        parts = {f"{name}_s": seconds for name, seconds in self.parts.items()}
        return {"pass": self.pass_, "rank": self.rank, "gap_s": self.seconds, **parts}


def gaps_of(
    runs: Sequence[tuple[Plan, Prediction]], machine: Hardware, scenario: Scenario
) -> list[Gap]:
    """Splits the time of each plan above the bound that applies to all of them.

    `runs`: one plan or a pair, each with its prediction in that scenario.
    """
    inapplicable = any(run.bound_inapplicable_reason for _, run in runs)
    bounds = [run.compute_bound if inapplicable else run.bound for _, run in runs]
    return [
        _gap(plan, run, bound.seconds, machine, scenario)
        for (plan, run), bound in zip(runs, bounds, strict=True)
    ]


def _gap(plan: Plan, run: Prediction, bound: float, machine: Hardware, scenario: Scenario) -> Gap:
    assert run.timeline is not None
    rank = int(run.timeline.finish.argmax())
    costs = Costs(plan, scenario.machine(machine))
    calls, kernels = _kernel_calls(costs, rank)
    speeds, pairs = scenario.speed(plan.ranks), work_of([plan]) * costs.kernels.seconds_per_pair
    speed, busy = float(speeds[rank]), float(run.busy[rank])
    launches = min(kernels, costs.kernels.launch * calls) / speed
    pair_time, average = float(pairs[rank]) / speed, float(pairs.sum() / speeds.sum())
    parts = {
        "waiting": run.makespan - busy,
        "merges": busy - kernels / speed,
        "launches": launches,
        "kernels": kernels / speed - launches - pair_time,
        "imbalance": pair_time - average,
        "other_bound": average - bound,
    }
    return Gap(plan.pass_, rank, run.makespan - bound, parts)


def _kernel_calls(costs: Costs, rank: int) -> tuple[float, float]:
    """Returns the number of kernel calls of a rank, and their seconds at speed 1."""
    calls, seconds = 0.0, 0.0
    for _, attend in costs.plan.attends():
        node = attend.select(attend.rank == rank)
        if len(node):
            counts = costs.rectangles.of(node)
            calls += float(counts[0].sum())
            heads = costs.rectangles.tiles.heads(node)
            seconds += float(np.sum(costs.kernels.total(counts[:5], heads)))
    return calls, seconds


def lost_by(loser: Sequence[Gap], winner: Sequence[Gap]) -> str:
    """Returns the label of the part in which the loser loses most time to the winner."""
    losses = {
        name: sum(gap.parts[name] for gap in loser) - sum(gap.parts[name] for gap in winner)
        for name in LABELS
    }
    return LABELS[max(losses, key=losses.__getitem__)]
