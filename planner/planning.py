"""plan(schedule, workload, ranks)   from a name to verified plans: build, then a list of passes."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Literal, overload

from planner.alike import alike
from planner.errors import PlanError
from planner.ir import Pass, Plan
from planner.passes.homeward import direct, homeward
from planner.passes.trim import trim
from planner.schedules import SCHEDULES
from planner.spelling import schedule as parse_schedule
from planner.verify import verify
from planner.workload import Workload

Rewrite = Callable[[Plan], Plan]
PASSES: tuple[Rewrite, ...] = (trim, homeward, direct)
REGULAR: tuple[Rewrite, ...] = ()  # for loops that would rather stay regular, under a full mask
Pair = tuple[Plan, Plan]
KEPT = 32  # kinds of plans of which the last is kept
MOST_KEPT = 1 << 16  # attends and messages of a plan that is kept


@overload
def plan(
    schedule: str,
    work: Workload,
    ranks: int,
    *,
    pass_: Pass = "forward",
    passes: Sequence[Rewrite] = PASSES,
) -> Plan: ...


@overload
def plan(
    schedule: str,
    work: Workload,
    ranks: int,
    *,
    pass_: Literal["both"],
    passes: Sequence[Rewrite] = PASSES,
) -> Pair: ...


def plan(
    schedule: str,
    work: Workload,
    ranks: int,
    *,
    pass_: Pass | Literal["both"] = "forward",
    passes: Sequence[Rewrite] = PASSES,
) -> Plan | Pair:
    """Plan a workload on `ranks` ranks by a schedule such as "striped" or "usp:ulysses=2:ring=4".

    Returns a verified plan, for pass_="both" a (forward, backward) pair. Raises PlanError for an
    unknown schedule or parameter, and for whatever the verifier refuses.
    """
    if pass_ == "both":
        return (
            plan(schedule, work, ranks, pass_="forward", passes=passes),
            plan(schedule, work, ranks, pass_="backward", passes=passes),
        )
    if pass_ not in ("forward", "backward"):
        raise PlanError(f"a pass is forward, backward or both, not {pass_!r}")
    if isinstance(ranks, bool) or not isinstance(ranks, int) or ranks < 1:
        raise PlanError(f"ranks must be a whole number from 1 up, not {ranks!r}")
    name, parameters = parse_schedule(schedule)
    if name not in SCHEDULES:
        raise PlanError(f"unknown schedule {name!r}: choose one of {', '.join(SCHEDULES)}")
    SCHEDULES[name].check(parameters)
    built = SCHEDULES[name].build(work, ranks, pass_, **parameters)
    if built.name != schedule:
        built = replace(built, name=schedule)
    return derive(built, passes)


def derive(built: Plan, passes: Sequence[Rewrite] = PASSES) -> Plan:
    """Run passes one after the other and prove what they made; PlanError of the first wrong one.

    Steps that were derived for another length are taken over where nothing tells them apart.
    """
    if built.rows > MOST_KEPT or not all(rewrite in PASSES for rewrite in passes):
        return _derived(built, passes)  # somebody's own rewrite may well look at lengths
    last = _last(built.name, built.ranks, built.pass_, tuple(passes))
    for before, made in last[:1]:  # a pair at a time: another thread may put one here meanwhile
        if alike(before, built):
            return replace(made, workload=built.workload, partition=built.partition)
    made = _derived(built, passes)
    last[:] = [(built, made)]
    return made


@lru_cache(maxsize=KEPT)
def _last(
    name: str, ranks: int, pass_: Pass, passes: tuple[Rewrite, ...]
) -> list[tuple[Plan, Plan]]:
    """Room for the last plan of a kind: as it was built, and what was made of it."""
    return []


def _derived(built: Plan, passes: Sequence[Rewrite]) -> Plan:
    made = [built]
    try:
        for rewrite in passes:
            made.append(rewrite(made[-1]))
        return verify(made[-1])
    except Exception:  # it may have been wrong long before anybody noticed
        for earlier in made[1:]:
            verify(earlier)
        raise
