"""compare(work, ranks)   every schedule on one workload: verified, predicted, run when asked."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from planner.analysis.balance import imbalance, loads
from planner.errors import PlanError
from planner.ir import Pass, Plan
from planner.masks import Full
from planner.planning import Trim, plan
from planner.schedules import SCHEDULES
from planner.workload import Workload
from runtimes.validation import check
from simulator.hardware import Hardware
from simulator.prediction import Prediction, ratio, simulate

Passes = Pass | Literal["both"]
Plans = Plan | tuple[Plan, Plan]
Track = Callable[[Iterable[str]], Iterable[str]]
TOKENS_PER_RANK = 64  # of the smaller workload that runs on real arrays
RUNNABLE = 4096  # tokens up to which a workload runs at its own length
WORTH = 0.9  # of a schedule's time: a variant that takes less than that is listed, too
SAME = 1.005  # times as long: schedules nearer than that take the same time
NARROW = 16  # head_dim of the smaller workload: who attends what does not depend on it


@dataclass(frozen=True)
class Load:
    """What one rank has to attend, as a share of the mean over ranks."""

    rank: int
    share: float


@dataclass(frozen=True, eq=False)
class Case:
    """One schedule of a comparison with what its row was made of."""

    row: "Row"
    plans: Plans
    found: Prediction
    trim: Trim = "messages"

    @property
    def passes(self) -> tuple[tuple[Plan, Prediction], ...]:
        """Each pass with its own prediction, in the order in which they run."""
        return passes_of(self.plans, self.found)


def passes_of(plans: Plans, found: Prediction) -> tuple[tuple[Plan, Prediction], ...]:
    """Each plan of a pair, or the only one, with its own prediction."""
    listed = plans if isinstance(plans, tuple) else (plans,)
    return tuple(zip(listed, found.passes or (found,), strict=True))


@dataclass(frozen=True)
class Row:
    """One schedule of a comparison; seconds, bytes, ratios. `exact` is None where nothing ran."""

    schedule: str
    makespan_s: float
    speedup_vs_ring: float
    idle_fraction: float
    exposed_comm_s: float
    max_bytes_sent: int
    peak_bytes: int
    bound_s: float  # of all compared plans the least: nobody of them beats it
    bound_ratio: float
    own_limit_s: float  # what this plan cannot beat, its own traffic included
    imbalance: float
    busiest: Load
    lightest: Load
    verified_seq: int
    exact: bool | None = None
    exact_seq: int | None = None

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


def compare(
    work: Workload,
    ranks: int,
    hardware: Hardware,
    schedules: Sequence[str] = tuple(SCHEDULES),
    *,
    pass_: Passes = "forward",
    overlap: bool = True,
    checked: bool = False,
    track: Track = iter,
) -> list[Row]:
    """Plan, verify and simulate each schedule; ring is always simulated, for the speedup.

    With `checked`, each schedule also runs on real arrays of `ranks` x 64 tokens against dense
    attention in float64. `track` may wrap the names, to show progress.
    """
    rows = []
    of_all = cases(
        work, ranks, hardware, schedules, pass_=pass_, overlap=overlap, track=track, variants=True
    )
    for case in of_all:
        rows.append(case.row)
        if checked and (small := smaller(work, ranks)):
            name = case.row.schedule.removesuffix(BLOCKWISE)
            found = check(plan(name, small, ranks, pass_=pass_, trim=case.trim))
            rows[-1] = replace(rows[-1], exact=found.exact, exact_seq=small.seq)
    return rows


def cases(
    work: Workload,
    ranks: int,
    hardware: Hardware,
    schedules: Sequence[str],
    *,
    pass_: Passes = "forward",
    overlap: bool = True,
    track: Track = iter,
    variants: bool = False,
) -> list[Case]:
    """Each schedule planned, verified and simulated, one after the other, by one lower bound.

    `variants`: behind a schedule comes what it is with messages split block by block, where that
    takes at least a tenth less time.
    """

    def predicted(name: str, trim: Trim = "messages") -> tuple[Plans, Prediction]:
        plans = plan(name, work, ranks, pass_=pass_, trim=trim)
        return plans, simulate(plans, hardware, overlap=overlap)

    ring, made = predicted("ring"), list[Case]()
    for name in track(schedules):
        plans, found = ring if name == "ring" else predicted(name)
        made.append(Case(row_of(name, plans, found, ring[1].makespan, work), plans, found))
        if variants and work.mask != Full():
            split, sooner = predicted(name, "blocks")
            if sooner.makespan <= WORTH * found.makespan:
                row = row_of(f"{name}{BLOCKWISE}", split, sooner, ring[1].makespan, work)
                made.append(Case(row, split, sooner, "blocks"))
    return by_one_bound(made)


BLOCKWISE = " --trim blocks"  # how a variant's name ends


def by_one_bound(made: Sequence[Case]) -> list[Case]:
    """The same with the least of their lower bounds, which holds for plans of every layout."""
    bound = min((case.found.bound for case in made), default=0.0)
    rows = [
        replace(case.row, bound_s=bound, bound_ratio=ratio(case.found.makespan, bound))
        for case in made
    ]
    return [replace(case, row=row) for case, row in zip(made, rows, strict=True)]


def row_of(name: str, plans: Plans, found: Prediction, ring: float, work: Workload) -> Row:
    """The row of a schedule whose makespan is compared with the ring's."""
    first = plans[0] if isinstance(plans, tuple) else plans
    total = loads(first).sum(axis=0)
    return Row(
        schedule=name,
        makespan_s=found.makespan,
        speedup_vs_ring=ring / found.makespan if found.makespan else 1.0,
        idle_fraction=found.idle_fraction,
        exposed_comm_s=found.exposed,
        max_bytes_sent=found.max_bytes_sent,
        peak_bytes=found.peak_bytes,
        bound_s=found.bound,
        bound_ratio=found.bound_ratio,
        own_limit_s=found.own_limit,
        imbalance=imbalance(first),
        busiest=_load(total, int(total.argmax())),
        lightest=_load(total, int(total.argmin())),
        verified_seq=work.seq,
    )


def smaller(work: Workload, ranks: int) -> Workload | None:
    """The same mask at a length that runs in a moment; None where the mask fixes the length."""
    narrow = min(work.head_dim, NARROW)
    if max(work.seq, work.kv_seq) <= RUNNABLE:
        return replace(work, dtype="float64", head_dim=narrow)
    seq = min(work.seq, ranks * TOKENS_PER_RANK)
    kv_seq = seq if work.kv_seq == work.seq else max(1, seq * work.kv_seq // work.seq)
    try:
        short = replace(work, seq=seq, kv_seq=min(kv_seq, RUNNABLE), dtype="float64")
        return replace(short, batch=1, head_dim=narrow)
    except PlanError:
        return None


def _load(total: NDArray[np.int64], rank: int) -> Load:
    return Load(rank, float(total[rank] / total.mean()) if total.any() else 1.0)


def why(rows: Sequence[Row]) -> str:
    """One sentence that explains the spread of a comparison from its numbers."""
    slow, fast = max(rows, key=lambda r: r.makespan_s), min(rows, key=lambda r: r.makespan_s)
    if not fast.makespan_s:
        return "The mask allows nothing: there is nothing to attend."
    ratio = slow.makespan_s / fast.makespan_s
    if ratio < SAME:
        who = f"{fast.schedule} takes" if len(rows) == 1 else "All schedules take the same time,"
        return (
            f"{who} {fast.bound_ratio:.2f} times the lower bound of {fast.bound_s * 1e3:.3g} ms,"
            f" and {fast.idle_fraction:.0%} of the machine idles."
        )
    found = f"{slow.schedule} takes {ratio:.2f} times as long as {fast.schedule}"
    waits = slow.exposed_comm_s - fast.exposed_comm_s
    if waits > 0.5 * (slow.makespan_s - fast.makespan_s):
        return (
            f"{found}: its ranks wait up to {slow.exposed_comm_s * 1e3:.3g} ms for transfers"
            f" ({fast.exposed_comm_s * 1e3:.3g} ms in {fast.schedule})."
        )
    if slow.busiest.share > 1.1 * fast.busiest.share:
        return (
            f"{found}: rank {slow.busiest.rank} attends {slow.busiest.share:.2f} times the mean of"
            f" all ranks and rank {slow.lightest.rank} only {slow.lightest.share:.2f} times, so"
            f" {slow.idle_fraction:.0%} of the machine idles; in {fast.schedule} the busiest rank"
            f" attends {fast.busiest.share:.2f} times the mean."
        )
    if slow.imbalance > 1.1 * fast.imbalance:
        return (
            f"{found}: the busiest ranks of its rounds have {slow.imbalance:.2f} times the mean"
            f" work ({fast.imbalance:.2f} in {fast.schedule}), and {slow.idle_fraction:.0%} of the"
            " machine idles."
        )
    busy, other = (r.makespan_s * (1 - r.idle_fraction) for r in (slow, fast))
    if busy > 1.1 * other:
        return (
            f"{found}: for the same pairs its kernels and merges take {busy / other:.2f} times as"
            f" long, {busy * 1e3:.3g} ms on a rank rather than {other * 1e3:.3g} ms."
        )
    if slow.idle_fraction > fast.idle_fraction:
        return (
            f"{found}: {slow.idle_fraction:.0%} of the machine idles"
            f" ({fast.idle_fraction:.0%} in {fast.schedule})."
        )
    return f"{found}."
