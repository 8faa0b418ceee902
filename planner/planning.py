"""plan(schedule, workload, ranks)   builds a named schedule, runs passes, verifies the result."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial, reduce
from typing import Literal, TypedDict, Unpack, overload

from ringloom.planner.errors import PlanError, brief, unknown
from ringloom.planner.ir import Pass, Plan
from ringloom.planner.layouts import Layout, own_name
from ringloom.planner.parse import schedule as parse_schedule
from ringloom.planner.partitions import LARGEST
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
NO_PASSES: tuple[Rewrite, ...] = ()  # keeps schedules as built, for full masks
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
    **how: Unpack[PlanOptions],
) -> Plan: ...


@overload
def plan(
    schedule: str, work: Workload, ranks: int, *, pass_: Literal["both"], **how: Unpack[PlanOptions]
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
    """Plan a workload on `ranks` ranks by a schedule such as "striped" or "usp:ulysses=2:ring=4".

    Returns a verified plan; with pass_="both", plans that unpack as (forward, backward). `trim`
    says what unneeded communication to drop: whole "messages", so that loops stay loops, or also
    "blocks" of messages, which sends less. `layout` replaces the schedule's layout: a name, or a
    partition with the positions and owners to use, such as `balanced_layout` returns. Raises
    PlanError for an unknown schedule or parameter, a layout that the schedule does not accept, and
    any plan that fails verification.
    """
    check_request(work, ranks, "plan(schedule, work, ranks)")
    if pass_ == "both":
        return verify_pair(
            plan(schedule, work, ranks, passes=passes, trim=trim, layout=layout),
            plan(schedule, work, ranks, pass_="backward", passes=passes, trim=trim, layout=layout),
        )
    if pass_ not in ("forward", "backward"):
        raise PlanError(f"pass_ must be forward, backward or both, not {brief(pass_)}")
    if ranks * ranks > LARGEST:  # every schedule has a block per rank at least
        most = math.isqrt(LARGEST)
        raise PlanError(
            f"{ranks} ranks need tables of more than {LARGEST} entries (ranks x blocks):"
            f" at most {most} ranks are possible"
        )
    if trim not in PASS_PIPELINES:
        raise PlanError(f"trim must be {' or '.join(PASS_PIPELINES)}, not {brief(trim)}")
    recipe, parameters = find_schedule(schedule)
    if layout is not None and "layout" not in recipe.parameters:
        raise PlanError(f"{recipe.name} has a fixed layout")
    chosen = {} if layout is None else {"layout": own_name(layout)}
    built = recipe.build(work, ranks, pass_, **(parameters | chosen))
    if not isinstance(built, Plan):
        raise PlanError(f"schedule {recipe.name} must return a plan, not {brief(built)}")
    if built.name != (name := recorded_name(schedule)):
        built = replace(built, name=name)
    return run_passes(built, PASS_PIPELINES[trim] if passes is None else passes)


def find_schedule(text: str) -> tuple[Schedule, dict[str, int | str]]:
    """Return the schedule and the parameters that a text such as "striped:grain=16" names.

    Raises PlanError for an unknown schedule or parameter.
    """
    known = isinstance(text, str)
    name, parameters = parse_schedule(recorded_name(text)) if known else (str(text), {})
    parameters |= {key: own_name(value) for key, value in parameters.items() if key == "layout"}
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
    """Run passes in turn and verify the result; the given plan may still have dead tiles.

    Raises PlanError if the result is wrong; if a pass crashes, for the first pass that broke it.
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
    except Exception:  # an earlier pass may have been wrong
        for rewrite in passes:
            built = verify(rewrite(built))
        raise


def backward_of(forward: Plan) -> Plan:
    """Returns the default backward pass: the verified adjoint of a forward plan."""
    return run_passes(adjoint(drop_useless(forward)))
