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
from ringloom.planner.search.offload import at_owners, offload_rows
from ringloom.planner.search.parts import Parts, parts
from ringloom.planner.search.prices import Prices
from ringloom.planner.search.recipe import MADE, Found, Recipe, Rows
from ringloom.planner.verify import verify
from ringloom.planner.workload import Workload


def build(recipe: Recipe, work: Workload, ranks: int, pass_: Pass, prices: Prices) -> Plan:
    """Builds and verifies the plan of a recipe; raises PlanError if it cannot be built.

    The same recipe, workload and prices give the same plan on every machine.
    """
    if isinstance(recipe.schedule, str):
        named = planned(recipe.schedule, work, ranks, pass_=pass_, trim=recipe.trim)
        if recipe.by_rows:
            return _by_rows(named, str(recipe), prices)
        if recipe.trim != "messages":  # the name of the plan does not say so
            return verify(replace(named, name=str(recipe)))
        return named
    way, name = recipe.schedule, str(recipe)
    if way.relay and ranks % way.relay:
        raise PlanError(f"relay={way.relay} of a found plan must divide {ranks} ranks")
    forward = cast(
        found_parts(way, work, ranks, prices),
        name,
        counts=way.slices,
        relay=way.relay,
        own=way.own,
    )
    if pass_ == "forward":
        return verify(forward)
    back = adjoint(forward, way.keep or ())
    return verify(trim(replace(back, name=name)))


def _by_rows(named: Plan, name: str, prices: Prices) -> Plan:
    """Groups the rows of a named plan by the keys they see."""
    cut = by_rows(named, prices.attend)
    if cut is named:
        raise PlanError("grouping rows that see the same keys makes no rectangle cheaper")
    return verify(replace(cut, name=name))


def found_parts(way: Found, work: Workload, ranks: int, prices: Prices) -> Parts:
    """Returns the parts of a found plan, which do not depend on how keys move."""
    return _parts(way.layout, way.grain, way.rows, way.offload, work, ranks, prices)


@lru_cache(maxsize=32)  # a search varies slices and routes of the same parts
def _parts(
    layout: str, grain: int, rows: Rows, offload: int, work: Workload, ranks: int, prices: Prices
) -> Parts:
    queries, keys = _sides(layout, grain, work, ranks, prices)
    where = offload_rows(work, ranks, prices, queries, offload) if offload else at_owners(queries)
    return parts(work, ranks, where, keys, rows)


@lru_cache(maxsize=32)  # ways to group rows, and offloads, start from the same layout
def _sides(
    layout: str, grain: int, work: Workload, ranks: int, prices: Prices
) -> tuple[Chunks, Chunks]:
    if layout in MADE:
        return lay_out(work, ranks, prices, layout, grain)
    return sides(work, ranks, layout, grain)
