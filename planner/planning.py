"""plan(schedule, workload, ranks)   from a name to verified plans: build, then a list of passes."""

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
from ringloom.planner.passes.pieces import joined, per_block, per_piece
from ringloom.planner.passes.relays import direct, homeward, stay
from ringloom.planner.passes.trim import drop_dead
from ringloom.planner.passes.trim import trim as drop_useless
from ringloom.planner.plans import Passes, Plans, one_plan
from ringloom.planner.schedules import PLAIN_NAMES, SCHEDULES, Schedule, recorded_name
from ringloom.planner.verify import verify, verify_pair
from ringloom.planner.workload import Workload, check_request

Rewrite = Callable[[Plan], Plan]
PASSES: tuple[Rewrite, ...] = (per_piece, drop_useless, stay, homeward, direct)
BLOCKWISE: tuple[Rewrite, ...] = (
    drop_dead,
    per_block,
    partial(drop_useless, regular=False),
    stay,
    partial(homeward, regular=False),
    partial(direct, regular=False),
    joined,
)
REGULAR: tuple[Rewrite, ...] = ()  # schedules as they were built, for full masks
Trim = Literal["messages", "blocks"]
TRIMS: dict[Trim, tuple[Rewrite, ...]] = {"messages": PASSES, "blocks": BLOCKWISE}


class How(TypedDict, total=False):
    """The options of `plan` that do not change its type."""

    passes: Sequence[Rewrite] | None
    trim: Trim
    layout: Layout | None


@overload
def plan(
    schedule: str, work: Workload, ranks: int, *, pass_: Pass = "forward", **how: Unpack[How]
) -> Plan: ...


@overload
def plan(
    schedule: str, work: Workload, ranks: int, *, pass_: Literal["both"], **how: Unpack[How]
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

    Returns a verified plan, for pass_="both" plans that unpack as (forward, backward). `trim` says
    what the mask takes away: whole messages, so that loops stay loops, or "blocks" out of messages,
    which sends less. `layout` takes the place of the schedule's: a name, or a partition whose
    positions and owners to take, such as `balance` returns. Raises PlanError for an unknown
    schedule or parameter, for a layout that the schedule does not take, and for whatever the
    verifier refuses.
    """
    check_request(work, ranks, "plan(schedule, work, ranks)")
    if pass_ == "both":
        return verify_pair(
            plan(schedule, work, ranks, passes=passes, trim=trim, layout=layout),
            plan(schedule, work, ranks, pass_="backward", passes=passes, trim=trim, layout=layout),
        )
    if pass_ not in ("forward", "backward"):
        raise PlanError(f"a pass is forward, backward or both, not {brief(pass_)}")
    if ranks * ranks > LARGEST:  # every schedule has a block per rank at least
        most = math.isqrt(LARGEST)
        raise PlanError(
            f"{ranks} ranks x as many blocks or more are more than the {LARGEST} places that"
            f" tables may have: {most} ranks at the most"
        )
    if trim not in TRIMS:
        raise PlanError(f"trim takes {' or '.join(TRIMS)}, not {brief(trim)}")
    recipe, parameters = find_schedule(schedule)
    if layout is not None and "layout" not in recipe.parameters:
        raise PlanError(f"{recipe.name} has a layout of its own")
    chosen = {} if layout is None else {"layout": own_name(layout)}
    built = recipe.build(work, ranks, pass_, **(parameters | chosen))
    if not isinstance(built, Plan):
        raise PlanError(f"schedule {recipe.name} must return a plan, not {brief(built)}")
    if built.name != (name := recorded_name(schedule)):
        built = replace(built, name=name)
    return derive(built, TRIMS[trim] if passes is None else passes)


def find_schedule(text: str) -> tuple[Schedule, dict[str, int | str]]:
    """Return the schedule and the parameters that a text such as "striped:grain=16" names.

    Raises PlanError for an unknown schedule or parameter.
    """
    known = isinstance(text, str)
    name, parameters = parse_schedule(recorded_name(text)) if known else (str(text), {})
    parameters |= {key: own_name(value) for key, value in parameters.items() if key == "layout"}
    if name == "found":  # of a search, whose recipes `ringloom.planner.search` reads
        raise PlanError(
            "a found plan is made for a machine: read its file, or rebuild it by"
            " rl.rebuild(recipe, work, ranks, hardware)"
        )
    if name not in SCHEDULES:
        raise PlanError(unknown("schedule", name, [*SCHEDULES, *PLAIN_NAMES.values()]))
    SCHEDULES[name].check(parameters)
    return SCHEDULES[name], parameters


def derive(built: Plan, passes: Iterable[Rewrite] = PASSES) -> Plan:
    """Run passes in turn and verify the result: what they are given may still have dead tiles.

    Raises PlanError for a wrong result; where a pass fails otherwise, of the first wrong pass.
    """
    built = one_plan(built, "derive")
    if not isinstance(passes, Iterable) or not all(map(callable, passes := [*passes])):
        raise PlanError(f"passes is a list of functions, such as [rl.trim], not {brief(passes)}")
    try:
        return verify(reduce(lambda plan, rewrite: rewrite(plan), passes, built))
    except PlanError:
        raise
    except Exception:  # an earlier pass may have been wrong
        for rewrite in passes:
            built = verify(rewrite(built))
        raise


def backward_of(forward: Plan) -> Plan:
    """Returns the verified adjoint of a forward plan, the default backward pass."""
    return derive(adjoint(drop_useless(forward)))
