"""build(recipe, ...)   builds and verifies the plan of a recipe."""

from dataclasses import replace
from functools import lru_cache

from ringloom.planner.errors import PlanError
from ringloom.planner.ir import Pass, Plan
from ringloom.planner.layouts import Chunks, sides
from ringloom.planner.passes.adjoint import adjoint
from ringloom.planner.passes.by_rows import by_rows
from ringloom.planner.passes.trim import trim
from ringloom.planner.planning import plan as planned
from ringloom.planner.search.assignment import lay_out
from ringloom.planner.search.cast import cast
from ringloom.planner.search.offload import offload_rows, place_at_owners
from ringloom.planner.search.parts import Parts, cut_parts
from ringloom.planner.search.prices import Prices
from ringloom.planner.search.recipe import SEARCHED_LAYOUTS, FoundRecipe, Recipe, Rows
from ringloom.planner.verify import verify
from ringloom.planner.workload import Workload


def build(recipe: Recipe, work: Workload, ranks: int, pass_: Pass, prices: Prices) -> Plan:
    """Builds and verifies the plan of a recipe; raises PlanError if that is not possible.

    The same recipe, workload and prices give the same plan on every machine.
    """
    if isinstance(recipe.schedule, str):
        named_plan = planned(recipe.schedule, work, ranks, pass_=pass_, trim=recipe.trim)
        if recipe.by_rows:
            return _group_rows(named_plan, str(recipe), prices)
        if recipe.trim != "messages":  # which the name of the plan omits
            return verify(replace(named_plan, name=str(recipe)))
        return named_plan
    choices, name = recipe.schedule, str(recipe)
    if choices.relay and ranks % choices.relay:
        raise PlanError(f"relay={choices.relay} of a found plan must divide {ranks} ranks")
    forward = cast(
        found_parts(choices, work, ranks, prices),
        name,
        counts=choices.slices,
        relay=choices.relay,
        own=choices.own,
    )
    if pass_ == "forward":
        return verify(forward)
    backward = adjoint(forward, choices.keep or ())
    return verify(trim(replace(backward, name=name)))


def _group_rows(named_plan: Plan, name: str, prices: Prices) -> Plan:
    """Groups the rows of a named plan that see the same keys."""
    grouped = by_rows(named_plan, prices.attend)
    if grouped is named_plan:
        raise PlanError("grouping rows that see the same keys makes no rectangle cheaper")
    return verify(replace(grouped, name=name))


def found_parts(choices: FoundRecipe, work: Workload, ranks: int, prices: Prices) -> Parts:
    """Returns the parts of a found plan, which do not depend on the movement of keys."""
    return _parts(choices.layout, choices.grain, choices.rows, choices.offload, work, ranks, prices)


@lru_cache(maxsize=32)  # a search varies slices and routes of the same parts
def _parts(
    layout: str, grain: int, rows: Rows, offload: int, work: Workload, ranks: int, prices: Prices
) -> Parts:
    queries, keys = _sides(layout, grain, work, ranks, prices)
    placed = place_at_owners(queries)
    if offload:
        placed = offload_rows(work, ranks, prices, queries, offload)
    return cut_parts(work, ranks, placed, keys, rows)


@lru_cache(maxsize=32)  # row groupings and offloads start from the same layout
def _sides(
    layout: str, grain: int, work: Workload, ranks: int, prices: Prices
) -> tuple[Chunks, Chunks]:
    if layout in SEARCHED_LAYOUTS:
        return lay_out(work, ranks, prices, layout, grain)
    return sides(work, ranks, layout, grain)
