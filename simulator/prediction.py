"""simulate(plan, hardware)   predicts time, idle time, bytes, memory and bounds of a plan."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ringloom.planner.plans import AnyPlans
from ringloom.planner.verify import ensure_verified
from ringloom.simulator.bounds import Bounds, compute_bound, lower_bound, outside
from ringloom.simulator.costs.prices import Costs
from ringloom.simulator.engines.choice import Engine, timed
from ringloom.simulator.facts import work_of
from ringloom.simulator.hardware import Hardware
from ringloom.simulator.hardware import hardware as hardware_named
from ringloom.simulator.memory import memory
from ringloom.simulator.network.relays import relayed
from ringloom.simulator.pictures import Drawn
from ringloom.simulator.scenario import Scenario, scenario_of
from ringloom.simulator.timeline import Floats

KEPT = 1 << 16  # rows up to which a timeline keeps every row by default
SUMMED = (
    *("makespan", "busy", "exposed", "bytes_sent", "max_bytes_sent"),
    *("busiest_link", "plan_lower_bound", "bound", "compute_bound"),
    *("rounds", "messages"),
)


@dataclass(frozen=True, eq=False, kw_only=True)
class Prediction(Drawn):
    """The predicted run of one pass, or of a forward and a backward pass, in seconds and bytes.

    For a pair, times and bytes are the sums over its passes, `peak_bytes` is
    the larger of the two, and `passes` holds both predictions; a single pass has its `timeline`
    and its `memory` instead. Plots take matplotlib axes, by default of a new figure, and return
    them.
    """

    ranks_per_node: int
    busy: Floats  # attending and merging: [ranks]
    exposed: float  # the longest wait of any rank for messages that were already sent
    bytes_sent: NDArray[np.int64]  # [ranks]
    max_bytes_sent: int  # by the rank that sends most in each pass
    peak_bytes: int  # on the rank with the highest peak
    bound: Bounds  # of this workload on these ranks, whatever the plan
    compute_bound: Bounds  # of compute and memory alone, valid for every exact plan
    bound_inapplicable_reason: (
        str | None
    )  # why the plan is in no class for which the bound holds; None if it is
    busiest_link: float  # seconds for which the plan's busiest port or link is in use
    plan_lower_bound: (
        float  # the same of its busiest rank or link: what no order of its work is below
    )
    rounds: int
    passes: tuple["Prediction", ...] = ()
    engine: Engine = "recurrence"  # the one that timed it
    contended: bool = False  # messages may have met on a link

    def __repr__(self) -> str:
        over, digits = self.bound_ratio, 2 * ((self.bound_ratio or 0) < 100)
        said = "" if over is None else f", {over:,.{digits}f} times the lower bound"
        time = f"{self.makespan * 1e3:.4g} ms, {self.idle_fraction:.0%} idle"
        return f"<Prediction {self.name} on {self.hardware}: {time}{said}>"

    def _repr_html_(self) -> str:
        numbers = {k: v for k, v in self.as_row().items() if isinstance(v, int | float)}
        cells = "".join(f"<tr><th>{k}</th><td>{v:,.5g}</td></tr>" for k, v in numbers.items())
        return f"<table><caption>{self.name} on {self.hardware}</caption>{cells}</table>"

    @property
    def idle_fraction(self) -> float:
        """1 - (attend + merge time) / (ranks x makespan)."""
        total = self.ranks * self.makespan
        return max(0.0, 1.0 - float(self.busy.sum()) / total) if total else 0.0

    @property
    def bound_ratio(self) -> float | None:
        """makespan / bound: no plan of the class is faster by more. None outside the class."""
        return None if self.bound_reason else ratio(self.makespan, self.bound.seconds)

    @property
    def compute_bound_ratio(self) -> float | None:
        """makespan / compute_bound, for plans of any class; None if the mask allows no pair."""
        least = self.compute_bound.seconds
        return None if self.makespan and not least else ratio(self.makespan, least)

    @property
    def bound_reason(self) -> str | None:
        """The reason why there is no `bound_ratio`; None if there is one."""
        nothing = self.makespan and not self.bound.seconds
        return self.bound_inapplicable_reason or (
            "the mask allows no query-key pair" if nothing else None
        )

    def as_row(self) -> dict[str, float | int | str | None]:
        """Returns the numbers by which schedules are compared, as plain values for JSON.

        `bound_reason` says why `bound_ratio` is None.
        """
        return {
            "makespan_s": self.makespan,
            "idle_fraction": self.idle_fraction,
            "exposed_comm_s": self.exposed,
            "max_bytes_sent": self.max_bytes_sent,
            "peak_bytes": self.peak_bytes,
            "bound_s": self.bound.seconds,
            "bound_ratio": self.bound_ratio,
            "bound_reason": self.bound_reason,
            "compute_bound_s": self.compute_bound.seconds,
            "compute_bound_ratio": self.compute_bound_ratio,
            "own_limit_s": self.plan_lower_bound,
        }


def ratio(makespan: float, bound: float) -> float:
    """Returns makespan / bound; 1.0 is the best possible value."""
    return makespan / bound if bound else (float("inf") if makespan else 1.0)


def simulate(
    plan: AnyPlans,
    hardware: Hardware | str | Path,
    scenario: Scenario | Mapping[str, Any] | None = None,
    *,
    engine: Engine = "auto",
    record: bool | None = None,
    **changes: Any,
) -> Prediction:
    """Predicts how a verified plan, or a (forward, backward) pair, runs on some hardware.

    `hardware` may be the name of a preset or of a file. `scenario` is a `Scenario`, or a table of
    its fields as in a scenario file; every other keyword replaces one of its fields, so
    `overlap=False` is short for `Scenario(overlap=False)`. `engine`: "recurrence" is fast, "events"
    also models shared links, receive buffers and late launches, and "auto" uses the fast one
    if both apply. `record` keeps every row in the timeline (default: for small plans).
    Raises RingloomError for unknown hardware and for an invalid scenario, PlanError for a plan that
    gets stuck, and the verifier's PlanError for a wrong plan.
    """
    scenario = replace(scenario_of(scenario or {}), **changes)
    chips = hardware_named(hardware)
    passes = [
        _one_pass(
            costs, placed, engine, costs.plan.rows <= KEPT if record is None else bool(record)
        )
        for costs, placed in _priced(plan, chips, scenario)
    ]
    return passes[0] if len(passes) == 1 else _both(*passes)


def seconds_of(plan: AnyPlans, hardware: Hardware, scenario: Scenario) -> float:
    """Returns only the seconds that `simulate` predicts."""
    passes = _priced(plan, hardware, scenario)
    return sum(timed(costs, placed, "auto", record=False)[0].end for costs, placed in passes)


def kernel_seconds(
    plan: AnyPlans, hardware: Hardware, scenario: Scenario, enough: float = math.inf
) -> float:
    """Returns the seconds of the attends of the busiest rank, summed over passes.

    Whatever its messages, a run with the same attends on the same ranks takes at least as long.
    Pricing stops once the sum reaches `enough`; the result is then a smaller lower bound.
    """
    total = 0.0
    for costs, placed in _priced(plan, hardware, scenario):
        total += _busiest(costs, placed.speed(costs.plan.ranks), enough - total)
    return total


def _busiest(costs: Costs, speeds: Floats, enough: float) -> float:
    """Returns the seconds of the busiest rank's attends, or a lower bound if it is `enough`.

    The bounds are the pairs at the full rate, then the attends of the rank with most pairs.
    """
    pairs = work_of([costs.plan]) * costs.kernels.seconds_per_pair / speeds
    if (least := float(pairs.max())) >= enough:
        return least
    for rank in (pairs.argmax(), None) if enough < math.inf else (None,):
        seconds = np.zeros(costs.plan.ranks)
        for _, attend in costs.plan.attends():
            node = attend if rank is None else attend.only(attend.rank == rank)
            np.add.at(seconds, node.rank, costs.attend(node))
        if (least := float((seconds / speeds).max())) >= enough:
            return least
    return least


def _priced(
    plan: AnyPlans, hardware: Hardware, scenario: Scenario
) -> Iterator[tuple[Costs, Scenario]]:
    """Yields the costs of each verified pass, and its scenario with the topology built.

    On a torus, blocks are relayed along trees.
    """
    plans = ensure_verified(plan)
    ranks = plans.first.ranks
    chips = scenario.nodes(scenario.machine(hardware), ranks)
    scenario = scenario.settled(hardware, ranks)
    torus = scenario.topology is not None or chips.node == "torus"
    for one in plans:
        if torus:
            one = relayed(one, scenario.routes(chips, one.ranks).topology)
        yield Costs(one, chips), scenario


def _one_pass(costs: Costs, scenario: Scenario, engine: Engine, record: bool) -> Prediction:
    timeline, sums, engine, contended = timed(costs, scenario, engine, record=record)
    plan, hardware, used = costs.plan, costs.hardware, memory(costs.plan)
    case = plan.workload, plan.ranks, plan.pass_, hardware, scenario
    bound, computing = lower_bound(*case), compute_bound(*case)
    reason, link = outside(plan), float(sums.ports.max(initial=0.0))
    least = computing if reason else bound
    return Prediction(
        name=plan.name,
        hardware=hardware.name,
        ranks=plan.ranks,
        ranks_per_node=hardware.ranks_per_node,
        makespan=timeline.end,
        busy=sums.busy,
        exposed=float(sums.exposed.max()),
        bytes_sent=sums.sent,
        max_bytes_sent=int(sums.sent.max()),
        peak_bytes=int(used.peak.max()),
        bound=bound,
        compute_bound=computing,
        bound_inapplicable_reason=reason,
        busiest_link=link,
        plan_lower_bound=max(least.seconds, link, float(sums.busy.max())),
        rounds=plan.rounds,
        messages=sums.messages,
        timeline=timeline,
        memory=used,
        engine=engine,
        contended=contended,
    )


def _both(first: Prediction, second: Prediction) -> Prediction:
    sums = {name: getattr(first, name) + getattr(second, name) for name in SUMMED}
    return replace(
        first,
        **sums,
        peak_bytes=max(first.peak_bytes, second.peak_bytes),
        bound_inapplicable_reason=first.bound_inapplicable_reason
        or second.bound_inapplicable_reason,
        timeline=None,
        memory=None,
        passes=(first, second),
        engine="events" if "events" in (first.engine, second.engine) else "recurrence",
        contended=first.contended or second.contended,
    )
