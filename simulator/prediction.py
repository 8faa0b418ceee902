"""simulate(plan, hardware)   how a plan would run: time, idle time, bytes, memory and bounds."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from planner.ir import Plan
from simulator.bounds import compute_bound, link_bound
from simulator.costs import Costs
from simulator.hardware import Hardware
from simulator.hardware import hardware as find
from simulator.memory import Memory, memory
from simulator.recurrence import run
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
    link_bound: float  # for this plan
    bound: float  # the larger of the two, pass by pass
    rounds: int
    messages: int
    timeline: Timeline | None = None
    memory: Memory | None = None
    passes: tuple["Prediction", ...] = ()

    @property
    def idle_fraction(self) -> float:
        """1 - (attend + merge time) / (ranks x makespan)."""
        total = self.ranks * self.makespan
        return max(0.0, 1.0 - float(self.busy.sum()) / total) if total else 0.0

    @property
    def bound_ratio(self) -> float:
        """makespan / bound: 1.0 is as good as it gets."""
        if not self.bound:
            return 1.0 if not self.makespan else float("inf")
        return self.makespan / self.bound

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
        }


def simulate(
    plan: Plan | tuple[Plan, Plan],
    hardware: Hardware | str | Path,
    *,
    overlap: bool = True,
    record: bool | None = None,
) -> Prediction:
    """Predict how a verified plan, or a (forward, backward) pair, runs on some hardware.

    `hardware` may be the name of a preset or of a file. Without overlap, transfers and compute of
    a rank take turns. `record` keeps every row in the timeline (default: for small plans). Raises
    PlanError for unknown hardware and for a plan that reads what is not there.
    """
    on = hardware if isinstance(hardware, Hardware) else find(hardware)
    if isinstance(plan, Plan):
        return _one(plan, on, overlap, plan.rows <= KEPT if record is None else record)
    return _both(*(simulate(one, on, overlap=overlap, record=record) for one in plan))


def _one(plan: Plan, hardware: Hardware, overlap: bool, record: bool) -> Prediction:
    costs = Costs(plan, hardware)
    timeline, sums = run(costs, overlap=overlap, record=record)
    used = memory(plan)
    computing, linking = compute_bound(costs), link_bound(sums)
    return Prediction(
        name=plan.name,
        hardware=hardware.name,
        ranks=plan.ranks,
        overlap=overlap,
        makespan=timeline.end,
        busy=sums.busy,
        exposed=float(sums.exposed.max()),
        bytes_sent=sums.sent,
        max_bytes_sent=int(sums.sent.max()),
        peak_bytes=int(used.peak.max()),
        compute_bound=computing,
        link_bound=linking,
        bound=max(computing, linking),
        rounds=plan.rounds,
        messages=sums.messages,
        timeline=timeline,
        memory=used,
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
        bound=first.bound + second.bound,
        rounds=first.rounds + second.rounds,
        messages=first.messages + second.messages,
        passes=(first, second),
    )
