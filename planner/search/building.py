"""build(recipe, ...)   from a recipe to a verified plan."""

from dataclasses import replace
from functools import lru_cache

from ringloom.planner.errors import PlanError
from ringloom.planner.ir import Pass, Plan
from ringloom.planner.layouts import Chunks, sides
from ringloom.planner.passes.adjoint import adjoint
from ringloom.planner.passes.by_rows import by_rows
from ringloom.planner.passes.trim import trim
from ringloom.planner.planning import plan as planned
from ringloom.planner.search.assignment import laid_out
from ringloom.planner.search.cast import cast
from ringloom.planner.search.offload import offloaded, placed
from ringloom.planner.search.parts import Parts, parts
from ringloom.planner.search.prices import Prices
from ringloom.planner.search.recipe import MADE, Found, Recipe, Rows
from ringloom.planner.verify import verify
from ringloom.planner.workload import Workload


def build(recipe: Recipe, work: Workload, ranks: int, pass_: Pass, prices: Prices) -> Plan:
    """Builds the plan of a recipe and verifies it; raises PlanError where it cannot be built.

    The same recipe, workload and prices give the same plan on every machine.
    """
    if isinstance(recipe.schedule, str):
        named = planned(recipe.schedule, work, ranks, pass_=pass_, trim=recipe.trim)
        if recipe.by_rows:
            return _by_rows(named, str(recipe), prices)
        if recipe.trim != "messages":  # which the name of a plan does not say
            return verify(replace(named, name=str(recipe)))
        return named
    way, name = recipe.schedule, str(recipe)
    if way.relay and ranks % way.relay:
        raise PlanError(f"relay={way.relay} of a found plan must divide {ranks} ranks")
    forward = cast(
        parts_of(way, work, ranks, prices),
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
    """Groups the rows of a named plan by the keys that they see."""
    cut = by_rows(named, prices.attend)
    if cut is named:
        raise PlanError("no rectangle gets cheaper where rows that see the same keys are one call")
    return verify(replace(cut, name=name))


def parts_of(way: Found, work: Workload, ranks: int, prices: Prices) -> Parts:
    """The parts of a found plan, which do not depend on how keys come."""
    return _parts(way.layout, way.grain, way.rows, way.offload, work, ranks, prices)


@lru_cache(maxsize=32)  # a search tries slices and routes of the same parts
def _parts(
    layout: str, grain: int, rows: Rows, offload: int, work: Workload, ranks: int, prices: Prices
) -> Parts:
    queries, keys = _sides(layout, grain, work, ranks, prices)
    where = offloaded(work, ranks, prices, queries, offload) if offload else placed(queries)
    return parts(work, ranks, where, keys, rows)


@lru_cache(maxsize=32)  # both kinds of rows, and offloads, start from the same layout
def _sides(
    layout: str, grain: int, work: Workload, ranks: int, prices: Prices
) -> tuple[Chunks, Chunks]:
    if layout in MADE:
        return laid_out(work, ranks, prices, layout, grain)
    return sides(work, ranks, layout, grain)
