"""Trials: plans, verifies and simulates each schedule of a comparison, or records why it cannot.

    named    the schedules that were named, or the default set for workload and machine
    further  other settings and schedules, if none were named
    split    schedules with messages split block by block, if that may save 10%
    grouped  schedules with one kernel call for rows that see the same keys

A further setting is not simulated if the kernels of its busiest rank alone take longer than the
fastest schedule so far. Only the best setting of each schedule is shown.

Splitting messages does not change attends, so a split schedule takes at least as long as the
kernels of its busiest rank. It is not planned if it can save less than 10% of the best time of its
family: the same schedule with any parameters.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from time import monotonic
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ringloom.planner.analysis.balance import imbalance
from ringloom.planner.errors import PlanError, RingloomError, brief
from ringloom.planner.masks import Full
from ringloom.planner.passes.by_rows import by_rows
from ringloom.planner.passes.edges import shares_keys
from ringloom.planner.planning import find_schedule, plan
from ringloom.planner.plans import Passes, Plans
from ringloom.planner.schedules import comparable_schedules, further_schedules
from ringloom.planner.search import Recipe
from ringloom.planner.search.recipe import BY_ROWS, TRIM
from ringloom.planner.verify import ensure_verified
from ringloom.planner.workload import Workload
from ringloom.pricing import rebuild
from ringloom.rows import Load, Refusal, Row, Unreached, shortage
from ringloom.runtimes.validation import check
from ringloom.simulator.confidence import interval, ratio_interval, spread
from ringloom.simulator.costs.prices import attend_price
from ringloom.simulator.facts import over_average, work_of
from ringloom.simulator.hardware import Hardware
from ringloom.simulator.prediction import Prediction, kernel_seconds, ratio, simulate
from ringloom.simulator.scenario import Scenario

Track = Callable[[Iterable[str]], Iterable[str]]
TOKENS_PER_RANK = 64  # in the shorter workload that --check executes
MAX_EXECUTED = 4096  # tokens of the longest workload that is executed at full length
LISTED_BELOW = 0.9  # split schedules are listed below this fraction of the family's best time
NEAR = 1.3  # schedules above this multiple of the fastest are never too close to call
SMALL_HEAD_DIM = 16  # head_dim of the executed workload; plans do not depend on it


@dataclass(frozen=True, eq=False)
class Case:
    """One schedule of a comparison: its row, plans and prediction."""

    row: Row
    plans: Plans
    prediction: Prediction

    def __repr__(self) -> str:
        return f"<Case {self.row.schedule}: {self.prediction!r}>"


class Split(NamedTuple):
    """A schedule with messages split block by block, listed if it takes at most `limit` seconds."""

    name: str
    unsplit: Case
    limit: float


class Further(NamedTuple):
    """Cases of further settings, how many were tried, and how many were not simulated."""

    cases: list[Case]
    tried: int
    pruned: int


@dataclass(frozen=True)
class Trials:
    """The trials of schedules for one workload on one machine.

    `memory_limit`: bytes per rank. No trial starts after `time_limit` seconds.
    """

    work: Workload
    ranks: int
    pass_: Passes
    machine: Hardware
    scenario: Scenario
    memory_limit: float
    time_limit: float = math.inf
    start: float = field(default_factory=monotonic)

    @property
    def is_out_of_time(self) -> bool:
        """Returns True once the time limit has passed."""
        return monotonic() - self.start >= self.time_limit

    def case(self, name: str) -> Case:
        """Plans, verifies and simulates a schedule; raises PlanError if it cannot be planned."""
        return self.simulate_plans(name, self.plans(name))

    def simulate_plans(self, name: str, plans: Plans) -> Case:
        """Simulates plans and returns their case."""
        return case_of(name, plans, simulate(plans, self.machine, self.scenario))

    def plans(self, name: str, work: Workload | None = None) -> Plans:
        """Returns the verified plans of a schedule, whose name may include --trim or --by-rows."""
        recipe = recipe_of(name)
        work, schedule, trim = work or self.work, str(recipe.schedule), recipe.trim
        plans = Plans.of(plan(schedule, work, self.ranks, pass_=self.pass_, trim=trim))
        return self.merge_rows(plans) if recipe.by_rows else plans

    def merge_rows(self, plans: Plans) -> Plans:
        """Merges rows that see the same keys into one kernel call where that is faster."""
        return by_rows(plans, attend_price(self.scenario.machine(self.machine)))

    def kernel_seconds(self, plans: Plans, enough: float = math.inf) -> float:
        """Returns the kernel time of the busiest rank; may stop counting above `enough` seconds."""
        return kernel_seconds(plans, self.machine, self.scenario, enough)

    def try_settings(self, cases: Sequence[Case], names: Iterable[str]) -> Further:
        """Tries further settings; skips those whose kernels take longer than the fastest case."""
        fastest = min((case.row.makespan_s for case in cases), default=math.inf)
        settings, tried, pruned = list[Case](), 0, 0
        for name in names:
            if self.is_out_of_time:
                break
            tried += 1
            try:
                plans = self.plans(name)
                if self.kernel_seconds(plans, fastest) > fastest:
                    pruned += 1
                    continue
                case = self.simulate_plans(name, plans)
            except PlanError:
                continue
            if not shortage(case.row.peak_bytes, self.memory_limit):
                settings.append(case)
                fastest = min(fastest, case.row.makespan_s)
        return Further(settings, tried, pruned)

    def outcome(self, name: str) -> Case | Refusal:
        """Returns the case of a schedule, or the reason why it cannot run."""
        if self.is_out_of_time:
            return Unreached(name, f"not started within {self.time_limit:g} s")
        return case_or_refusal(name, self.case, self.memory_limit)

    def splits(self, cases: Sequence[Case]) -> list[Split]:
        """Returns candidates with messages split block by block; none for full masks.

        A candidate is listed if it takes 10% less time than the best of its family.
        """
        if self.work.mask == Full():
            return []
        best = {_family(case): case.row.makespan_s for case in sorted(cases, key=_slowest_first)}
        names = {case.row.schedule for case in cases}
        splits = [
            Split(f"{case.row.schedule}{TRIM}blocks", case, LISTED_BELOW * best[_family(case)])
            for case in cases
            if TRIM not in case.row.schedule
        ]
        return [split for split in splits if split.name not in names]

    def is_promising(self, split: Split) -> bool:
        """Returns False if the kernels alone take longer than the limit of the candidate."""
        return self.kernel_seconds(split.unsplit.plans) <= split.limit

    def given_case(self, plans: Plans, checked: bool) -> Case:
        """Returns the case of given plans, executed if their names are recipes for other lengths.

        Raises PlanError for plans of another workload and for plans that need too much memory.
        """
        if (plans.workload, plans.ranks, plans.pass_) != (self.work, self.ranks, self.pass_):
            given = f"{plans.pass_} of {plans.workload} on {plans.ranks} ranks"
            raise PlanError(f"the plans are for another workload: {given}")
        ensure_verified(plans)
        case = self.simulate_plans(" / ".join(dict.fromkeys(plan.name for plan in plans)), plans)
        if lack := shortage(case.row.peak_bytes, self.memory_limit):
            raise PlanError(f"the given plan {lack}")
        case = replace(case, row=replace(case.row, added=True))
        with suppress(PlanError):  # the name is not a recipe, or does not fit fewer tokens
            if checked and self.rebuild_plans(plans, self.work) == plans:
                return self.execute(case, partial(self.rebuild_plans, plans))
        return case

    def rebuild_plans(self, plans: Plans, work: Workload) -> Plans:
        """Rebuilds plans for another workload, with their names as recipes."""
        build = partial(rebuild, ranks=self.ranks, hardware=self.machine, scenario=self.scenario)
        return Plans(**{x.pass_: build(x.name, work, pass_=x.pass_) for x in plans})

    def try_merged_rows(self, cases: Sequence[Case], track: Track) -> Further:
        """Tries one kernel call for rows that see the same keys; returns cases that save 10%."""
        if not shares_keys(self.work):
            return Further([], 0, 0)
        names, faster, tried, pruned = {case.row.schedule for case in cases}, list[Case](), 0, 0
        originals = {
            f"{x.row.schedule}{BY_ROWS}": x for x in cases if BY_ROWS not in x.row.schedule
        }
        for name in track([name for name in originals if name not in names]):
            if self.is_out_of_time:
                break
            original, tried = originals[name], tried + 1
            limit, plans = LISTED_BELOW * original.row.makespan_s, original.plans
            if self.kernel_seconds(plans, 0.0) <= limit:  # counts all pairs
                plans = self.merge_rows(plans)
                if self.kernel_seconds(plans, limit) <= limit:
                    case = self.simulate_plans(name, plans)
                    fits = not shortage(case.row.peak_bytes, self.memory_limit)
                    faster += [case] * (fits and case.row.makespan_s <= limit)
                    continue
            pruned += 1
        return Further(faster, tried, pruned)

    def execute(self, case: Case, build: Callable[[Workload], Plans] | None = None) -> Case:
        """Executes a case on a shorter workload and returns it with the result.

        `build` returns the plans for that workload, by default those of the schedule.
        """
        short = shorter_workload(self.work, self.ranks)
        if short is None or self.is_out_of_time:
            return case
        exact = check(build(short) if build else self.plans(case.row.schedule, short)).exact
        return replace(case, row=replace(case.row, exact=exact, exact_seq=short.seq))

    def add_intervals(self, cases: Sequence[Case], track: Track) -> Iterator[Case]:
        """Adds prediction intervals to cases, which are sorted, the fastest first.

        Cases close to the fastest also get an interval of their ratio to it. After the time limit,
        cases are returned without intervals.
        """
        best, fastest, machine = cases[0], cases[0].row.makespan_s, self.machine
        best_spread = spread(best.plans, machine, self.scenario, fastest)
        names = track([case.row.schedule for case in cases])
        for _, case in zip(names, cases, strict=True):
            if self.is_out_of_time:
                yield case
                continue
            time, ratios, own_spread = case.row.makespan_s, None, best_spread
            is_near, pass_ = fastest < time <= NEAR * fastest, case.plans.pass_
            if case is not best:
                own_spread = spread(case.plans, machine, self.scenario, time, calibrated=is_near)
            if is_near:
                spreads = own_spread, best_spread
                ratios = ratio_interval(machine.name, pass_, time / fastest, *spreads)
            times = interval(machine, pass_, time, own_spread)
            yield replace(case, row=replace(case.row, interval_s=times, ratio_interval=ratios))


def best_of_each(cases: Iterable[Case]) -> list[Case]:
    """Returns the fastest case of each schedule over all its settings."""
    best = dict[str, Case]()
    for case in sorted(cases, key=lambda case: case.row.order):
        best.setdefault(_family(case), case)
    return [*best.values()]


def _family(case: Case) -> str:
    return recipe_of(case.row.schedule).family


def _slowest_first(case: Case) -> float:
    return -case.row.makespan_s


def recipe_of(name: str) -> Recipe:
    """Parses a schedule's name with its options, such as "usp --trim blocks".

    Raises PlanError for an unknown schedule, parameter or option, and for a recipe of a search.
    """
    recipe = Recipe.parse(name)
    if not isinstance(recipe.schedule, str):
        find_schedule(name)
    return recipe


def schedule_names(
    schedules: Sequence[str] | None,
    work: Workload,
    ranks: int,
    machine: Hardware,
    variants: bool = True,
) -> list[str]:
    """Returns the names of the given schedules, or of the default set, each once.

    With `variants`, further settings follow the default set.
    """
    names: Any = schedules
    if schedules is None:
        names, node = list[str](), machine.ranks_per_node
        for defaults in (
            (comparable_schedules, further_schedules) if variants else (comparable_schedules,)
        ):
            names += defaults(work, ranks, node)
    if isinstance(names, str) or not isinstance(names, Iterable) or not (listed := list(names)):
        raise PlanError(f"schedules must be a list of names, such as ['ring'], not {names!r}")
    return list(dict.fromkeys(with_node_size(name, ranks, machine) for name in listed))


def with_node_size(name: str, ranks: int, machine: Hardware) -> str:
    """Sets node= to the machine's node size if the schedule has this parameter and no value.

    Raises PlanError for an unknown schedule, parameter or trim.
    """
    recipe = recipe_of(name)
    schedule, values = find_schedule(text := str(recipe.schedule))
    node = machine.ranks_per_node
    if "node" in schedule.parameters and "node" not in values and 1 < node < ranks:
        text += f":node={node}" * (ranks % node == 0)
    return str(replace(recipe, schedule=text))


def case_or_refusal(name: str, make: Callable[[str], Case], limit: float) -> Case | Refusal:
    """Returns the case of a schedule, or why it cannot run with `limit` bytes per rank."""
    try:
        case = make(name)
    except PlanError as error:
        return Refusal(name, str(error))
    lack = shortage(case.row.peak_bytes, limit)
    return Refusal(name, lack) if lack else case


def with_speedup(case: Case, ring: Case) -> Case:
    """Returns a case with its speedup over ring."""
    speedup = ratio(ring.row.makespan_s, case.row.makespan_s)
    return replace(case, row=replace(case.row, speedup_vs_ring=speedup))


def case_of(name: str, plans: Plans, prediction: Prediction) -> Case:
    """Returns the case of one schedule; sets its speedup to 1, which `with_speedup` replaces."""
    first = plans.first
    work = work_of([first])
    numbers: dict[str, Any] = prediction.as_row()
    row = Row(
        schedule=name,
        speedup_vs_ring=1.0,
        imbalance=imbalance(first),
        busiest=_load(work, int(work.argmax())),
        lightest=_load(work, int(work.argmin())),
        verified_seq=first.workload.seq,
        **numbers,
    )
    return Case(row, plans, prediction)


def _load(work: NDArray[np.int64], rank: int) -> Load:
    return Load(rank, float(over_average(work)[rank]) if work.any() else 1.0)


def shorter_workload(work: Workload, ranks: int) -> Workload | None:
    """Returns a short workload with the same mask; None if the mask fits only one length."""
    dims = "head_dim", "v_head_dim"
    narrow = {dim: min(getattr(work, dim), SMALL_HEAD_DIM) for dim in dims}
    if max(work.seq, work.kv_seq) <= MAX_EXECUTED:
        return replace(work, dtype="float64", **narrow)
    seq = min(work.seq, ranks * TOKENS_PER_RANK)
    kv_seq = seq if work.kv_seq == work.seq else max(1, seq * work.kv_seq // work.seq)
    try:
        short = replace(work, seq=seq, kv_seq=min(kv_seq, MAX_EXECUTED), dtype="float64")
        return replace(short, batch=1, **narrow)
    except PlanError:
        return None


def amount(value: object, name: str, unit: str, default: float) -> float:
    """Returns the value of an argument, or `default` if it is None.

    Raises RingloomError for NaN, negative numbers and anything that is not a number.
    """
    if value is None:
        return default
    if isinstance(value, int | float | np.number) and not isinstance(value, bool):
        with suppress(OverflowError):
            if (number := float(value)) >= 0:
                return number
            raise RingloomError(f"{name} must be at least 0 {unit}, not {brief(value)}")
    raise RingloomError(f"{name} must be a number of {unit}, not {brief(value)}")
