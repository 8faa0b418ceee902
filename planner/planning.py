"""plan(schedule, work, ranks)   builds a named schedule, runs passes and verifies the result."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial, reduce
from typing import Literal, TypedDict, Unpack, overload

from ringloom.planner.errors import PlanError, brief, unknown
from ringloom.planner.ir import Pass, Plan
from ringloom.planner.layouts import Layout, canonical_layout
from ringloom.planner.parse import parse_schedule as parse_schedule
from ringloom.planner.partitions import LARGEST_TABLE
from ringloom.planner.passes.adjoint import adjoint
from ringloom.planner.passes.pieces import join_messages, per_block, per_piece
from ringloom.planner.passes.relays import keep_local, shortcut_copies, shortcut_sums
from ringloom.planner.passes.trim import drop_dead
from ringloom.planner.passes.trim import trim as drop_useless
from ringloom.planner.plans import Passes, Plans, one_plan
from ringloom.planner.schedules import PLAIN_NAMES, SCHEDULES, Schedule, recorded_name
from ringloom.planner.verify import verify, verify_pair
from ringloom.planner.workload import Workload, check_request

Rewrite = Callable[[Plan], Plan]
DEFAULT_PASSES: tuple[Rewrite, ...] = (
    per_piece,
    drop_useless,
    keep_local,
    shortcut_sums,
    shortcut_copies,
)
BLOCK_PASSES: tuple[Rewrite, ...] = (
    drop_dead,
    per_block,
    partial(drop_useless, regular=False),
    keep_local,
    partial(shortcut_sums, regular=False),
    partial(shortcut_copies, regular=False),
    join_messages,
)
NO_PASSES: tuple[Rewrite, ...] = ()  # for schedules as built, under full masks
Trim = Literal["messages", "blocks"]
PASS_PIPELINES: dict[Trim, tuple[Rewrite, ...]] = {
    "messages": DEFAULT_PASSES,
    "blocks": BLOCK_PASSES,
}


class PlanOptions(TypedDict, total=False):
    """Options of `plan` that do not change its result type."""

    passes: Sequence[Rewrite] | None
    trim: Trim
    layout: Layout | None


@overload
def plan(
    schedule: str,
    work: Workload,
    ranks: int,
    *,
    pass_: Pass = "forward",
    **options: Unpack[PlanOptions],
) -> Plan: ...


@overload
def plan(
    schedule: str,
    work: Workload,
    ranks: int,
    *,
    pass_: Literal["both"],
    **options: Unpack[PlanOptions],
) -> Plans: ...


def plan(
    schedule: str,
    work: Workload,
    ranks: int,
    *,
    pass_: Passes = "forward",
    passes: Sequence[Rewrite] | None = None,
    trim: Trim = "messages",
    layout: Layout | None = None,
) -> Plan | Plans:
    """Plans a workload on `ranks` ranks by a schedule such as "striped" or "usp:ulysses=2:ring=4".

    Returns a verified plan; with pass_="both", plans that unpack as (forward, backward). `trim`
    selects the unneeded communication to drop: whole "messages", which keeps programs short, or
    also "blocks" within messages, which sends less. `layout` replaces the schedule's layout: a
    name, or a partition with the positions and owners to use, such as `balanced_layout` returns.
    Raises PlanError for an unknown schedule or parameter, a layout that the schedule does not
    accept, and any plan that fails verification.
    """
    check_request(work, ranks, "plan(schedule, work, ranks)")
    if pass_ == "both":
        return verify_pair(
            plan(schedule, work, ranks, passes=passes, trim=trim, layout=layout),
            plan(schedule, work, ranks, pass_="backward", passes=passes, trim=trim, layout=layout),
        )
    if pass_ not in ("forward", "backward"):
        raise PlanError(f"pass_ must be forward, backward or both, not {brief(pass_)}")
    if ranks * ranks > LARGEST_TABLE:  # every schedule has at least one block per rank
        most = math.isqrt(LARGEST_TABLE)
        raise PlanError(
            f"{ranks} ranks need tables of more than {LARGEST_TABLE} entries (ranks x blocks):"
            f" at most {most} ranks are possible"
        )
    if trim not in PASS_PIPELINES:
        raise PlanError(f"trim must be {' or '.join(PASS_PIPELINES)}, not {brief(trim)}")
    definition, parameters = find_schedule(schedule)
    if layout is not None and "layout" not in definition.parameters:
        raise PlanError(f"{definition.name} has a fixed layout")
    override = {} if layout is None else {"layout": canonical_layout(layout)}
    built = definition.build(work, ranks, pass_, **(parameters | override))
    if not isinstance(built, Plan):
        raise PlanError(f"schedule {definition.name} must return a plan, not {brief(built)}")
    if built.name != (name := recorded_name(schedule)):
        built = replace(built, name=name)
    return run_passes(built, PASS_PIPELINES[trim] if passes is None else passes)


def find_schedule(text: str) -> tuple[Schedule, dict[str, int | str]]:
    """Returns the schedule and the parameters that a text such as "striped:grain=16" names.

    Raises PlanError for an unknown schedule or parameter.
    """
    is_text = isinstance(text, str)
    name, parameters = parse_schedule(recorded_name(text)) if is_text else (str(text), {})
    parameters |= {
        key: canonical_layout(value) for key, value in parameters.items() if key == "layout"
    }
    if name == "found":  # a recipe of a search, which `ringloom.planner.search` reads
        raise PlanError(
            "a found plan belongs to one machine: load its file, or rebuild it with"
            " rl.rebuild(recipe, work, ranks, hardware)"
        )
    if name not in SCHEDULES:
        raise PlanError(unknown("schedule", name, [*SCHEDULES, *PLAIN_NAMES.values()]))
    SCHEDULES[name].check(parameters)
    return SCHEDULES[name], parameters


def run_passes(built: Plan, passes: Iterable[Rewrite] = DEFAULT_PASSES) -> Plan:
    """Runs passes in turn and verifies the result; the given plan may still have dead tiles.

    Raises PlanError if the result is wrong. If a pass crashes, the error is about the first pass
    that returned a wrong plan.
    """
    built = one_plan(built, "run_passes")
    if not isinstance(passes, Iterable) or not all(map(callable, passes := [*passes])):
        raise PlanError(
            f"passes must be a list of functions, such as [rl.trim], not {brief(passes)}"
        )
    try:
        return verify(reduce(lambda plan, rewrite: rewrite(plan), passes, built))
    except PlanError:
        raise
    except Exception:  # perhaps an earlier pass returned a wrong plan
        for rewrite in passes:
            built = verify(rewrite(built))
        raise


def backward_of(forward: Plan) -> Plan:
    """Returns the default backward pass: the verified adjoint of a forward plan."""
    return run_passes(adjoint(drop_useless(forward)))
