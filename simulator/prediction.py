"""simulate(plan, hardware)   how a plan would run: time, idle time, bytes, memory and bounds."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import networkx as nx
import numpy as np
from numpy.typing import NDArray

from planner.ir import Plan
from planner.plans import AnyPlans
from planner.verify import ensure_verified
from simulator.bounds import Bounds, lower_bounds
from simulator.costs import Costs
from simulator.engines.choice import Engine, place_of, reach_of, timed
from simulator.hardware import Hardware
from simulator.hardware import hardware as find
from simulator.memory import Memory, memory
from simulator.network.routes import Links
from simulator.network.topology import Topology
from simulator.scenario import CHUNK, Scenario, Speeds
from simulator.timeline import Timeline

Floats = NDArray[np.float64]
KEPT = 1 << 16  # rows up to which a timeline keeps every row unless told otherwise


@dataclass(frozen=True, eq=False)
class Prediction:
    """How one pass, or a forward and a backward pass in turn, would run on some hardware.

    Seconds and bytes. For a pair, times and bytes are the sums over its passes, `peak_bytes` is
    the larger of the two, and `passes` holds both predictions; a single pass has its `timeline`
    and its `memory` instead.
    """

    name: str
    hardware: str
    ranks: int
    overlap: bool
    makespan: float
    busy: Floats  # attending and merging: [ranks]
    exposed: float  # the longest that any rank waits for messages their sources had offered
    bytes_sent: NDArray[np.int64]  # [ranks]
    max_bytes_sent: int  # of the rank that sends most, pass by pass
    peak_bytes: int  # of the rank that holds most
    compute_bound: float  # for any schedule on this hardware
    link_bound: float  # for this plan: its busiest port or link
    own_limit: float  # what this plan cannot beat in whatever order, its own traffic included
    rounds: int
    messages: int
    timeline: Timeline | None = None
    memory: Memory | None = None
    passes: tuple["Prediction", ...] = ()
    engine: Engine = "recurrence"  # the one that timed it
    contended: bool = False  # whether messages may have met on a link
    bounds: Bounds | None = None  # for any schedule of this workload from this partition

    def __repr__(self) -> str:
        return (
            f"<Prediction {self.name} on {self.hardware}: {self.makespan * 1e3:.4g} ms,"
            f" {self.idle_fraction:.0%} idle, {self.bound_ratio:.2f} times the lower bound>"
        )

    @property
    def idle_fraction(self) -> float:
        """1 - (attend + merge time) / (ranks x makespan)."""
        total = self.ranks * self.makespan
        return max(0.0, 1.0 - float(self.busy.sum()) / total) if total else 0.0

    @property
    def bound(self) -> float:
        """Seconds below which no schedule from this partition can be, pass by pass."""
        if self.bounds is not None:
            return self.bounds.best
        return sum(one.bound for one in self.passes)

    @property
    def bound_ratio(self) -> float:
        """makespan / bound: how far any other schedule could be ahead at the most."""
        return ratio(self.makespan, self.bound)

    def as_row(self) -> dict[str, float | int]:
        """The numbers that schedules are compared by, as plain Python numbers for JSON."""
        return {
            "makespan_s": self.makespan,
            "idle_fraction": self.idle_fraction,
            "exposed_comm_s": self.exposed,
            "max_bytes_sent": self.max_bytes_sent,
            "peak_bytes": self.peak_bytes,
            "bound_s": self.bound,
            "bound_ratio": self.bound_ratio,
            "own_limit_s": self.own_limit,
        }


def ratio(makespan: float, bound: float) -> float:
    """makespan / bound; 1.0 is as good as it gets."""
    return makespan / bound if bound else (float("inf") if makespan else 1.0)


def simulate(
    plan: AnyPlans,
    hardware: Hardware | str | Path,
    *,
    overlap: bool = True,
    engine: Engine = "auto",
    topology: Topology | nx.Graph | str | None = None,
    speeds: Speeds | None = None,
    links: Links | None = None,
    buffers: int | Literal["plan"] | None = None,
    late: bool = False,
    share: float | None = None,
    chunk: int = CHUNK,
    record: bool | None = None,
) -> Prediction:
    """Predict how a verified plan, or a (forward, backward) pair, runs on some hardware.

    `hardware` may be the name of a preset or of a file. Without overlap, transfers and compute of
    a rank take turns. `engine`: "recurrence" is fast, "events" also knows shared links, `buffers`,
    `late` launches and the `share` of the chip that transfers take; "auto" takes the fast one
    where both apply. `topology` is one of `network.topology`, its name or a networkx graph;
    `speeds` maps ranks to factors, `links` pairs of places to factors (0 cuts a link): see
    `simulator.scenario`. `record` keeps every row in the timeline (default: for small plans).
    Raises PlanError for unknown hardware, for a scenario that makes no sense, for a plan that gets
    stuck, and with the verifier's sentence for a wrong one that nobody verified.
    """
    on = hardware if isinstance(hardware, Hardware) else find(hardware)
    plans = ensure_verified(plan)
    place = place_of(topology, on, plans.first)
    scenario = Scenario(overlap, speeds, links or {}, place, buffers, late, share, chunk)
    passes = [
        _one(one, on, scenario, engine, one.rows <= KEPT if record is None else record)
        for one in plans
    ]
    return passes[0] if len(passes) == 1 else _both(*passes)


def _one(
    plan: Plan, hardware: Hardware, scenario: Scenario, engine: Engine, record: bool
) -> Prediction:
    costs = Costs(plan, hardware)
    result = timed(costs, scenario, engine, record=record)
    timeline, sums, used = result.timeline, result.sums, memory(plan)
    limits = lower_bounds(costs, reach_of(costs, scenario), scenario.pace(plan.ranks))
    busiest = float(sums.ports.max(initial=0.0))
    return Prediction(
        name=plan.name,
        hardware=hardware.name,
        ranks=plan.ranks,
        overlap=scenario.overlap,
        makespan=timeline.end,
        busy=sums.busy,
        exposed=float(sums.exposed.max()),
        bytes_sent=sums.sent,
        max_bytes_sent=int(sums.sent.max()),
        peak_bytes=int(used.peak.max()),
        compute_bound=limits.compute,
        link_bound=busiest,
        own_limit=max(limits.best, busiest),
        rounds=plan.rounds,
        messages=sums.messages,
        timeline=timeline,
        memory=used,
        engine=result.engine,
        contended=result.contended,
        bounds=limits,
    )


def _both(first: Prediction, second: Prediction) -> Prediction:
    return Prediction(
        name=first.name,
        hardware=first.hardware,
        ranks=first.ranks,
        overlap=first.overlap,
        makespan=first.makespan + second.makespan,
        busy=first.busy + second.busy,
        exposed=first.exposed + second.exposed,
        bytes_sent=first.bytes_sent + second.bytes_sent,
        max_bytes_sent=first.max_bytes_sent + second.max_bytes_sent,
        peak_bytes=max(first.peak_bytes, second.peak_bytes),
        compute_bound=first.compute_bound + second.compute_bound,
        link_bound=first.link_bound + second.link_bound,
        own_limit=first.own_limit + second.own_limit,
        rounds=first.rounds + second.rounds,
        messages=first.messages + second.messages,
        passes=(first, second),
        engine="events" if "events" in (first.engine, second.engine) else "recurrence",
        contended=first.contended or second.contended,
    )
