"""Trials: each schedule of a comparison planned, verified and simulated, or why it was not.

    named    the schedules that were asked for, or those that matter on the machine
    further  where none was asked for, other settings of these and of other schedules
    split    those to be shown with messages split block by block, where that may save a tenth
    grouped  the same with rows that see the same keys as one call, for masks with such rows

Of a further setting only the plan is made where the kernels of its busiest rank alone take longer
than the fastest schedule so far: it cannot be the fastest. Of each schedule, the best is shown.

Splitting changes no attend. So a split schedule takes as long as the kernels of its busiest rank at
least, and is not even planned where that leaves no tenth to gain on the best of its family: the
same schedule with other parameters.
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
TOKENS_PER_RANK = 64  # of the smaller workload that is executed numerically
RUNNABLE = 4096  # tokens up to which a workload runs at its own length
WORTH = 0.9  # of the best of a family: a split schedule that takes less than that is listed, too
NEAR = 1.3  # times the fastest: what takes longer is never too close to call
NARROW = 16  # head_dim of the smaller workload: plans do not depend on it


@dataclass(frozen=True, eq=False)
class Case:
    """One schedule of a comparison: its row, plans and prediction."""

    row: Row
    plans: Plans
    prediction: Prediction

    def __repr__(self) -> str:
        return f"<Case {self.row.schedule}: {self.prediction!r}>"


class Split(NamedTuple):
    """A schedule with messages split block by block: up to `worth` seconds it is worth a row."""

    name: str
    whole: Case
    worth: float


class Further(NamedTuple):
    """Cases of further settings, how many were tried, and how many of these not simulated."""

    cases: list[Case]
    tried: int
    pruned: int


@dataclass(frozen=True)
class Trials:
    """The workload and machine of a comparison, on which schedules are tried; `room` in bytes.

    After `limit` seconds, no other trial begins.
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
        """True once the time limit has passed."""
        return monotonic() - self.start >= self.limit

    def case(self, name: str) -> Case:
        """Plan, verify and simulate a schedule; raises PlanError where it cannot be planned."""
        return case(name, plans := self.plans(name), simulate(plans, self.machine, self.scenario))

    def plans(self, name: str, work: Workload | None = None) -> Plans:
        """The verified plans of a schedule, which may name its trim."""
        recipe = recipe_of(name)
        schedule, trim, where = str(recipe.schedule), recipe.trim, work or self.work
        made = Plans.of(plan(schedule, where, self.ranks, pass_=self.pass_, trim=trim))
        return self.with_rows(made) if recipe.by_rows else made

    def with_rows(self, plans: Plans) -> Plans:
        """Plans with rows that see the same keys as one call, where the machine gains by it."""
        return by_rows(plans, attend_price(self.scenario.machine(self.machine)))

    def improved(self, cases: Sequence[Case], names: Iterable[str]) -> Further:
        """Try further settings, whose kernels may be faster than the fastest case so far."""
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
        """Returns the case of a schedule, or why there is none."""
        if self.over:
            return Unreached(name, f"not reached within {self.limit:g} s")
        return feasible(name, make or self.case, self.room)

    def splits(self, cases: Sequence[Case]) -> list[Split]:
        """Returns the schedules of cases with messages split block by block; none for full masks.

        They are worth a row if they take a tenth less than the best of their family.
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
        """Returns False where the kernels alone take more than is worth a row."""
        return kernel_seconds(split.whole.plans, self.machine, self.scenario) <= split.worth

    def added(self, plans: Plans, checked: bool) -> Case:
        """Returns the case of plans that are given; executed where recipes say how to rebuild them.

        Raises PlanError for plans of another workload and for those that do not fit.
        """
        if (plans.workload, plans.ranks, plans.pass_) != (self.work, self.ranks, self.pass_):
            what = f"{plans.pass_} of {plans.workload} on {plans.ranks} ranks"
            raise PlanError(f"the plans are {what}, not what is compared")
        ensure_verified(plans)
        name = " / ".join(dict.fromkeys(plan.name for plan in plans))
        one = case(name, plans, simulate(plans, self.machine, self.scenario))
        if lack := shortage(one.row.peak_bytes, self.room):
            raise PlanError(f"the plan that is given {lack}")
        one = replace(one, row=replace(one.row, added=True))
        with suppress(PlanError):  # no recipe, or one that does not go with so few tokens
            if checked and self.rebuilt(plans, self.work) == plans:
                return self.executed(one, partial(self.rebuilt, plans))
        return one

    def rebuilt(self, plans: Plans, work: Workload) -> Plans:
        """Returns the plans of some workload that the names of plans, as recipes, stand for."""
        where = self.ranks, self.machine
        made = [
            rebuild(one.name, work, *where, pass_=one.pass_, scenario=self.scenario)
            for one in plans
        ]
        return Plans(**{one.pass_: one for one in made})

    def grouped(self, cases: Sequence[Case], track: Track) -> Further:
        """Try cases with rows that see the same keys as one call; kept where that saves a tenth."""
        names, kept, tried, pruned = {one.row.schedule for one in cases}, list[Case](), 0, 0
        whole = {f"{one.row.schedule}{ROWS}": one for one in cases if ROWS not in one.row.schedule}
        for name in track([x for x in whole if x not in names] if shares_keys(self.work) else []):
            if self.over:
                break
            worth, tried = WORTH * whole[name].row.makespan_s, tried + 1
            plans, where = whole[name].plans, (self.machine, self.scenario)
            if kernel_seconds(plans, *where, 0.0) <= worth:  # those of all its pairs
                plans = self.with_rows(plans)
                if kernel_seconds(plans, *where, worth) <= worth:
                    one = case(name, plans, simulate(plans, *where))
                    fits = not shortage(one.row.peak_bytes, self.room)
                    kept += [one] * (fits and one.row.makespan_s <= worth)
                    continue
            pruned += 1
        return Further(kept, tried, pruned)

    def executed(self, one: Case, made: Callable[[Workload], Plans] | None = None) -> Case:
        """Returns a case with what its execution on a smaller workload showed.

        `made` returns the plans of that workload, by default those of the schedule.
        """
        small = smaller(self.work, self.ranks)
        if small is None or self.over:
            return one
        exact = check(made(small) if made else self.plans(one.row.schedule, small)).exact
        return replace(one, row=replace(one.row, exact=exact, exact_seq=small.seq))

    def with_intervals(self, cases: Sequence[Case], track: Track) -> Iterator[Case]:
        """Yields cases, the fastest first, with intervals of their times, and of those near its.

        Once the time limit has passed, cases stay without.
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
    """Returns the fastest case of each schedule, whatever its settings."""
    best = dict[str, Case]()
    for one in sorted(cases, key=lambda one: one.row.order):
        best.setdefault(_family(one), one)
    return [*best.values()]


def _family(one: Case) -> str:
    return recipe_of(one.row.schedule).family


def recipe_of(name: str) -> Recipe:
    """Returns a schedule with its trim and rows, as names of rows tell: "usp --trim blocks".

    Raises PlanError for an unknown schedule, parameter or trim, and for a plan that was found.
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
    """Returns each schedule once, as the machine runs it: those given, or those that matter.

    With `variants`, their further settings come after the usual ones, where none is given.
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
    """Returns a name, with node= where its schedule has nodes and says none, and the machine some.

    Raises PlanError for an unknown schedule, parameter or trim.
    """
    recipe = recipe_of(name)
    schedule, given = find_schedule(text := str(recipe.schedule))
    node = machine.ranks_per_node
    if "node" in schedule.parameters and "node" not in given and 1 < node < ranks:
        text += f":node={node}" * (ranks % node == 0)
    return str(replace(recipe, schedule=text))


def feasible(name: str, make: Callable[[str], Case], room: float) -> Case | Refusal:
    """Returns the case of a schedule, or why it cannot run with so many bytes on a rank."""
    try:
        one = make(name)
    except PlanError as error:
        return Refusal(name, str(error))
    lack = shortage(one.row.peak_bytes, room)
    return Refusal(name, lack) if lack else one


def against(ring: Case, one: Case) -> Case:
    """Returns a case with its speedup over the ring."""
    speedup = ratio(ring.row.makespan_s, one.row.makespan_s)
    return replace(one, row=replace(one.row, speedup_vs_ring=speedup))


def case(name: str, plans: Plans, prediction: Prediction) -> Case:
    """A schedule by itself: nothing is faster yet than its own lower bound, or than the ring."""
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
    """The same mask at a length that runs in a moment; None where the mask fixes the length."""
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
    """Returns the value of an argument, or what holds `without` one.

    Raises RingloomError for what is no number, NaN, and numbers below 0.
    """
    if value is None:
        return without
    if isinstance(value, int | float | np.number) and not isinstance(value, bool):
        with suppress(OverflowError):
            if (number := float(value)) >= 0:
                return number
            raise RingloomError(f"{name} must be from 0 {unit} up, not {brief(value)}")
    raise RingloomError(f"{name} must be a number of {unit}, not {brief(value)}")
