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
from ringloom.simulator.bounds import Bounds, compute_bound, lower_bound, reason_outside_class
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

    For a pair, times and bytes are sums over both passes, `peak_bytes` is the larger peak, and
    `passes` has both predictions. A single pass has a `timeline` and a `memory` instead. Plots take
    matplotlib axes, by default of a new figure, and return them.
    """

    ranks_per_node: int
    busy: Floats  # attending and merging: [ranks]
    exposed: float  # the longest wait of any rank for messages that were already sent
    bytes_sent: NDArray[np.int64]  # [ranks]
    max_bytes_sent: int  # by the rank that sends the most, in each pass
    peak_bytes: int  # on the rank with the highest peak
    bound: Bounds  # of all plans of the class for this workload and these ranks
    compute_bound: Bounds  # of compute and memory alone, valid for every exact plan
    bound_inapplicable_reason: str | None  # why the plan is outside the class; None if inside
    busiest_link: float  # seconds for which the plan's busiest port or link is in use
    plan_lower_bound: float  # of this plan: the bound, or its busiest rank or link if that is more
    rounds: int
    passes: tuple["Prediction", ...] = ()
    engine: Engine = "recurrence"  # the engine that timed the plan
    contended: bool = False  # True if messages may have shared a link

    def __repr__(self) -> str:
        over, digits = self.bound_ratio, 2 * ((self.bound_ratio or 0) < 100)
        times_bound = "" if over is None else f", {over:,.{digits}f} times the lower bound"
        time = f"{self.makespan * 1e3:.4g} ms, {self.idle_fraction:.0%} idle"
        return f"<Prediction {self.name} on {self.hardware}: {time}{times_bound}>"

    def _repr_html_(self) -> str:
        numbers = {k: v for k, v in self.as_row().items() if isinstance(v, int | float)}
        cells = "".join(f"<tr><th>{k}</th><td>{v:,.5g}</td></tr>" for k, v in numbers.items())
        return f"<table><caption>{self.name} on {self.hardware}</caption>{cells}</table>"

    @property
    def idle_fraction(self) -> float:
        """The idle fraction: 1 - (attend + merge time) / (ranks x makespan)."""
        total = self.ranks * self.makespan
        return max(0.0, 1.0 - float(self.busy.sum()) / total) if total else 0.0

    @property
    def bound_ratio(self) -> float | None:
        """The ratio makespan / bound; None for plans outside the class."""
        return None if self.bound_reason else ratio(self.makespan, self.bound.seconds)

    @property
    def compute_bound_ratio(self) -> float | None:
        """The ratio makespan / compute_bound, for any plan; None if the mask allows no pair."""
        least = self.compute_bound.seconds
        return None if self.makespan and not least else ratio(self.makespan, least)

    @property
    def bound_reason(self) -> str | None:
        """The reason why there is no `bound_ratio`; None if `bound_ratio` is a number."""
        nothing = self.makespan and not self.bound.seconds
        return self.bound_inapplicable_reason or (
            "the mask allows no query-key pair" if nothing else None
        )

    def as_row(self) -> dict[str, float | int | str | None]:
        """Returns the numbers for comparing schedules, as plain values for JSON.

        `bound_reason` is the reason if `bound_ratio` is None.
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

    `hardware` may be the name of a preset or of a file. `scenario` is a `Scenario`, or a mapping of
    its fields as in a scenario file; every other keyword replaces one of its fields, so
    `overlap=False` is short for `Scenario(overlap=False)`. `engine`: "recurrence" is fast, "events"
    also models shared links, receive buffers and late launches, and "auto" uses "recurrence" if
    both apply. `record` keeps every row in the timeline (default: only for small plans).
    Raises RingloomError for unknown hardware and for an invalid scenario, and PlanError for a wrong
    plan and for one that gets stuck.
    """
    scenario = replace(scenario_of(scenario or {}), **changes)
    chips = hardware_named(hardware)
    passes = [
        _one_pass(
            costs, placed, engine, costs.plan.rows <= KEPT if record is None else bool(record)
        )
        for costs, placed in _priced(plan, chips, scenario)
    ]
    return passes[0] if len(passes) == 1 else _sum_passes(*passes)


def seconds_of(plan: AnyPlans, hardware: Hardware, scenario: Scenario) -> float:
    """Returns the makespan that `simulate` predicts, without the rest of the prediction."""
    passes = _priced(plan, hardware, scenario)
    return sum(timed(costs, placed, "auto", record=False)[0].end for costs, placed in passes)


def kernel_seconds(
    plan: AnyPlans, hardware: Hardware, scenario: Scenario, enough: float = math.inf
) -> float:
    """Returns the seconds of the attends of the busiest rank, summed over passes.

    Any run with the same attends on the same ranks takes at least this time. Pricing stops once the
    sum reaches `enough`; the result is then a smaller lower bound.
    """
    total = 0.0
    for costs, placed in _priced(plan, hardware, scenario):
        total += _busiest(costs, placed.speed(costs.plan.ranks), enough - total)
    return total


def _busiest(costs: Costs, speeds: Floats, enough: float) -> float:
    """Returns the seconds of the busiest rank's attends, or a lower bound of at least `enough`.

    The lower bounds are all pairs at the full rate, then the attends of the rank with most pairs.
    """
    pairs = work_of([costs.plan]) * costs.kernels.seconds_per_pair / speeds
    if (least := float(pairs.max())) >= enough:
        return least
    for rank in (pairs.argmax(), None) if enough < math.inf else (None,):
        seconds = np.zeros(costs.plan.ranks)
        for _, attend in costs.plan.attends():
            node = attend if rank is None else attend.select(attend.rank == rank)
            np.add.at(seconds, node.rank, costs.attend(node))
        if (least := float((seconds / speeds).max())) >= enough:
            return least
    return least


def _priced(
    plan: AnyPlans, hardware: Hardware, scenario: Scenario
) -> Iterator[tuple[Costs, Scenario]]:
    """Yields the costs of each verified pass, and the scenario with its topology built.

    On a torus, messages to several ranks are relayed along trees.
    """
    plans = ensure_verified(plan)
    ranks = plans.first.ranks
    chips = scenario.nodes(scenario.machine(hardware), ranks)
    scenario = scenario.settled(hardware, ranks)
    torus = scenario.topology is not None or chips.node == "torus"
    for part in plans:
        if torus:
            part = relayed(part, scenario.routes(chips, ranks).topology)
        yield Costs(part, chips), scenario


def _one_pass(costs: Costs, scenario: Scenario, engine: Engine, record: bool) -> Prediction:
    timeline, sums, engine, contended = timed(costs, scenario, engine, record=record)
    plan, hardware, used = costs.plan, costs.hardware, memory(costs.plan)
    case = plan.workload, plan.ranks, plan.pass_, hardware, scenario
    bound, from_compute = lower_bound(*case), compute_bound(*case)
    reason, link = reason_outside_class(plan), float(sums.ports.max(initial=0.0))
    least = from_compute if reason else bound
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
        compute_bound=from_compute,
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


def _sum_passes(first: Prediction, second: Prediction) -> Prediction:
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
