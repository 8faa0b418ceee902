"""Trials: plans, verifies and simulates each schedule of a comparison, or records why it cannot.

    named    the schedules that were named, or the default set for workload and machine
    further  if none were named, other settings of these and of other schedules
    split    schedules with messages split block by block, where that may save 10%
    grouped  schedules with one kernel call for rows that see the same keys

A further setting is not simulated if the kernels of its busiest rank alone take longer than the
fastest schedule so far. Only the best setting of each schedule is shown.

Splitting messages does not change attends, so a split schedule takes at least as long as the
kernels of its busiest rank. It is not planned if that leaves less than 10% to gain on the best of
its family, which is the same schedule with any parameters.
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
from ringloom.planner.schedules import comparable, further
from ringloom.planner.search import Recipe
from ringloom.planner.search.recipe import ROWS, TRIM
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
TOKENS_PER_RANK = 64  # of the smaller workload that --check executes
RUNNABLE = 4096  # workloads of at most this many tokens are executed at full length
WORTH = 0.9  # split schedules are listed below this fraction of the family's best time
NEAR = 1.3  # schedules above this multiple of the fastest are never too close to call
NARROW = 16  # head_dim of the executed workload; plans do not depend on it


@dataclass(frozen=True, eq=False)
class Case:
    """One schedule of a comparison: its row, plans and prediction."""

    row: Row
    plans: Plans
    prediction: Prediction

    def __repr__(self) -> str:
        return f"<Case {self.row.schedule}: {self.prediction!r}>"


class Split(NamedTuple):
    """A schedule with messages split block by block, listed if it takes at most `worth` seconds."""

    name: str
    whole: Case
    worth: float


class Further(NamedTuple):
    """Cases of further settings, how many were tried, and how many of those were not simulated."""

    cases: list[Case]
    tried: int
    pruned: int


@dataclass(frozen=True)
class Trials:
    """Tries schedules for one workload on one machine with `room` bytes per rank.

    No trial starts after `limit` seconds.
    """

    work: Workload
    ranks: int
    pass_: Passes
    machine: Hardware
    scenario: Scenario
    room: float
    limit: float = math.inf
    start: float = field(default_factory=monotonic)

    @property
    def over(self) -> bool:
        """Returns True once the time limit has passed."""
        return monotonic() - self.start >= self.limit

    def case(self, name: str) -> Case:
        """Plans, verifies and simulates a schedule; raises PlanError if it cannot be planned."""
        return case(name, plans := self.plans(name), simulate(plans, self.machine, self.scenario))

    def plans(self, name: str, work: Workload | None = None) -> Plans:
        """Returns the verified plans of a schedule, whose name may include --trim or --by-rows."""
        recipe = recipe_of(name)
        schedule, trim, where = str(recipe.schedule), recipe.trim, work or self.work
        made = Plans.of(plan(schedule, where, self.ranks, pass_=self.pass_, trim=trim))
        return self.with_rows(made) if recipe.by_rows else made

    def with_rows(self, plans: Plans) -> Plans:
        """Merges rows that see the same keys into one kernel call where that is faster."""
        return by_rows(plans, attend_price(self.scenario.machine(self.machine)))

    def improved(self, cases: Sequence[Case], names: Iterable[str]) -> Further:
        """Tries further settings; skips those whose kernels take longer than the fastest case."""
        fastest = min((one.row.makespan_s for one in cases), default=math.inf)
        settings, tried, pruned = list[Case](), 0, 0
        for name in names:
            if self.over:
                break
            tried += 1
            try:
                plans = self.plans(name)
                if kernel_seconds(plans, self.machine, self.scenario, fastest) > fastest:
                    pruned += 1
                    continue
                one = case(name, plans, simulate(plans, self.machine, self.scenario))
            except PlanError:
                continue
            if not shortage(one.row.peak_bytes, self.room):
                settings.append(one)
                fastest = min(fastest, one.row.makespan_s)
        return Further(settings, tried, pruned)

    def outcome(self, name: str, make: Callable[[str], Case] | None = None) -> Case | Refusal:
        """Returns the case of a schedule, or the reason why it cannot run."""
        if self.over:
            return Unreached(name, f"not started within {self.limit:g} s")
        return feasible(name, make or self.case, self.room)

    def splits(self, cases: Sequence[Case]) -> list[Split]:
        """Returns candidates with messages split block by block; none for full masks.

        A candidate is listed if it takes 10% less time than the best of its family.
        """
        names, best = {one.row.schedule for one in cases}, dict[str, float]()
        for one in cases:
            took = one.row.makespan_s
            best[_family(one)] = min(took, best.get(_family(one), took))
        whole = [] if self.work.mask == Full() else [c for c in cases if TRIM not in c.row.schedule]
        splits = [
            Split(f"{one.row.schedule}{TRIM}blocks", one, WORTH * best[_family(one)])
            for one in whole
        ]
        return [one for one in splits if one.name not in names]

    def is_promising(self, split: Split) -> bool:
        """Returns False if the kernels alone take longer than the candidate may."""
        return kernel_seconds(split.whole.plans, self.machine, self.scenario) <= split.worth

    def added(self, plans: Plans, checked: bool) -> Case:
        """Returns the case of given plans, executed if their names are recipes for other lengths.

        Raises PlanError for plans of another workload and for plans that need too much memory.
        """
        if (plans.workload, plans.ranks, plans.pass_) != (self.work, self.ranks, self.pass_):
            what = f"{plans.pass_} of {plans.workload} on {plans.ranks} ranks"
            raise PlanError(f"the plans are for another workload: {what}")
        ensure_verified(plans)
        name = " / ".join(dict.fromkeys(plan.name for plan in plans))
        one = case(name, plans, simulate(plans, self.machine, self.scenario))
        if lack := shortage(one.row.peak_bytes, self.room):
            raise PlanError(f"the given plan {lack}")
        one = replace(one, row=replace(one.row, added=True))
        with suppress(PlanError):  # the name is no recipe, or the recipe does not fit fewer tokens
            if checked and self.rebuilt(plans, self.work) == plans:
                return self.executed(one, partial(self.rebuilt, plans))
        return one

    def rebuilt(self, plans: Plans, work: Workload) -> Plans:
        """Rebuilds plans for another workload, with their names as recipes."""
        where = self.ranks, self.machine
        made = [
            rebuild(one.name, work, *where, pass_=one.pass_, scenario=self.scenario)
            for one in plans
        ]
        return Plans(**{one.pass_: one for one in made})

    def grouped(self, cases: Sequence[Case], track: Track) -> Further:
        """Tries one kernel call for rows that see the same keys; keeps cases that save 10%."""
        names, kept, tried, pruned = {one.row.schedule for one in cases}, list[Case](), 0, 0
        whole = {f"{one.row.schedule}{ROWS}": one for one in cases if ROWS not in one.row.schedule}
        for name in track([x for x in whole if x not in names] if shares_keys(self.work) else []):
            if self.over:
                break
            worth, tried = WORTH * whole[name].row.makespan_s, tried + 1
            plans, where = whole[name].plans, (self.machine, self.scenario)
            if kernel_seconds(plans, *where, 0.0) <= worth:  # counts all pairs
                plans = self.with_rows(plans)
                if kernel_seconds(plans, *where, worth) <= worth:
                    one = case(name, plans, simulate(plans, *where))
                    fits = not shortage(one.row.peak_bytes, self.room)
                    kept += [one] * (fits and one.row.makespan_s <= worth)
                    continue
            pruned += 1
        return Further(kept, tried, pruned)

    def executed(self, one: Case, made: Callable[[Workload], Plans] | None = None) -> Case:
        """Executes a case on a smaller workload and returns it with the result.

        `made` returns the plans for that workload, by default those of the schedule.
        """
        small = smaller(self.work, self.ranks)
        if small is None or self.over:
            return one
        exact = check(made(small) if made else self.plans(one.row.schedule, small)).exact
        return replace(one, row=replace(one.row, exact=exact, exact_seq=small.seq))

    def with_intervals(self, cases: Sequence[Case], track: Track) -> Iterator[Case]:
        """Adds prediction intervals to cases, which come fastest first.

        Cases close to the fastest also get an interval of their ratio to it. Once the time limit
        has passed, cases stay without intervals.
        """
        best, fastest, machine = cases[0], cases[0].row.makespan_s, self.machine
        least = spread(best.plans, machine, self.scenario, fastest)
        names = track([one.row.schedule for one in cases])
        for _, one in zip(names, cases, strict=True):
            if self.over:
                yield one
                continue
            took, over = one.row.makespan_s, None
            near = fastest < took <= NEAR * fastest
            own = least
            if one is not best:
                own = spread(one.plans, machine, self.scenario, took, calibrated=near)
            if near:
                over = ratio_interval(machine.name, one.plans.pass_, took / fastest, own, least)
            around = interval(machine, one.plans.pass_, took, own)
            yield replace(one, row=replace(one.row, interval_s=around, ratio_interval=over))


def best_of_each(cases: Iterable[Case]) -> list[Case]:
    """Returns the fastest case of each schedule, over all its settings."""
    best = dict[str, Case]()
    for one in sorted(cases, key=lambda one: one.row.order):
        best.setdefault(_family(one), one)
    return [*best.values()]


def _family(one: Case) -> str:
    return recipe_of(one.row.schedule).family


def recipe_of(name: str) -> Recipe:
    """Parses a schedule's name with its options, such as "usp --trim blocks".

    Raises PlanError for an unknown schedule, parameter or option, and for plans of a search.
    """
    recipe = Recipe.parse(name)
    if not isinstance(recipe.schedule, str):
        find_schedule(name)
    return recipe


def asked_for(
    schedules: Sequence[str] | None,
    work: Workload,
    ranks: int,
    machine: Hardware,
    variants: bool = True,
) -> list[str]:
    """Returns the names of the given schedules, or of the default set, each once.

    With `variants`, further settings follow the default set.
    """
    named: Any = schedules
    if schedules is None:
        named, node = list[str](), machine.ranks_per_node
        for listed in (comparable, further) if variants else (comparable,):
            named += listed(work, ranks, node)
    given = [] if isinstance(named, str) or not isinstance(named, Iterable) else list(named)
    if not given:
        raise PlanError(f"schedules must be a list of names, such as ['ring'], not {named!r}")
    return list(dict.fromkeys(on_machine(name, ranks, machine) for name in given))


def on_machine(name: str, ranks: int, machine: Hardware) -> str:
    """Adds the machine's node size to a name whose schedule has a parameter node= but no value.

    Raises PlanError for an unknown schedule, parameter or trim.
    """
    recipe = recipe_of(name)
    schedule, given = find_schedule(text := str(recipe.schedule))
    node = machine.ranks_per_node
    if "node" in schedule.parameters and "node" not in given and 1 < node < ranks:
        text += f":node={node}" * (ranks % node == 0)
    return str(replace(recipe, schedule=text))


def feasible(name: str, make: Callable[[str], Case], room: float) -> Case | Refusal:
    """Returns the case of a schedule, or why it cannot run with `room` bytes per rank."""
    try:
        one = make(name)
    except PlanError as error:
        return Refusal(name, str(error))
    lack = shortage(one.row.peak_bytes, room)
    return Refusal(name, lack) if lack else one


def against(ring: Case, one: Case) -> Case:
    """Returns a case with its speedup over ring."""
    speedup = ratio(ring.row.makespan_s, one.row.makespan_s)
    return replace(one, row=replace(one.row, speedup_vs_ring=speedup))


def case(name: str, plans: Plans, prediction: Prediction) -> Case:
    """Returns the case of one schedule; its speedup over ring is not known yet and set to 1."""
    first = plans.first
    total = work_of([first])
    numbers: dict[str, Any] = prediction.as_row()
    row = Row(
        schedule=name,
        speedup_vs_ring=1.0,
        imbalance=imbalance(first),
        busiest=_load(total, int(total.argmax())),
        lightest=_load(total, int(total.argmin())),
        verified_seq=first.workload.seq,
        **numbers,
    )
    return Case(row, plans, prediction)


def _load(total: NDArray[np.int64], rank: int) -> Load:
    return Load(rank, float(over_average(total)[rank]) if total.any() else 1.0)


def smaller(work: Workload, ranks: int) -> Workload | None:
    """Returns a short workload with the same mask; None if the mask fits only its own length."""
    dims = "head_dim", "v_head_dim"
    narrow = {dim: min(getattr(work, dim), NARROW) for dim in dims}
    if max(work.seq, work.kv_seq) <= RUNNABLE:
        return replace(work, dtype="float64", **narrow)
    seq = min(work.seq, ranks * TOKENS_PER_RANK)
    kv_seq = seq if work.kv_seq == work.seq else max(1, seq * work.kv_seq // work.seq)
    try:
        short = replace(work, seq=seq, kv_seq=min(kv_seq, RUNNABLE), dtype="float64")
        return replace(short, batch=1, **narrow)
    except PlanError:
        return None


def amount(value: object, name: str, unit: str, without: float) -> float:
    """Returns the value of an argument, or `without` if it is None.

    Raises RingloomError for NaN, negative numbers and anything that is not a number.
    """
    if value is None:
        return without
    if isinstance(value, int | float | np.number) and not isinstance(value, bool):
        with suppress(OverflowError):
            if (number := float(value)) >= 0:
                return number
            raise RingloomError(f"{name} must be at least 0 {unit}, not {brief(value)}")
    raise RingloomError(f"{name} must be a number of {unit}, not {brief(value)}")
