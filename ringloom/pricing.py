"""search_prices(work, hardware)   what a search is told of a machine.

rebuild(recipe, work, ranks, hardware)    the plan that a recipe stands for there
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ringloom.planner.errors import PlanError, brief
from ringloom.planner.ir import TENSORS, Pass, Plan
from ringloom.planner.search import Prices, Recipe, build
from ringloom.planner.workload import Workload, check_request
from ringloom.simulator.costs.kernels import Kernels
from ringloom.simulator.costs.prices import attend_price
from ringloom.simulator.hardware import Hardware
from ringloom.simulator.hardware import hardware as find_hardware
from ringloom.simulator.scenario import Scenario, scenario_of


def search_prices(work: Workload, hardware: Hardware) -> Prices:
    """Returns the seconds of pairs, calls, merges and keys on a machine, as a search takes them.

    They are those of the forward pass: tokens are laid out by them in both passes, which go
    together only where their tokens lie alike.
    """
    kernels = Kernels(hardware, work, "forward")
    out, kv = (TENSORS[name].bytes_per_token(work, finished=False) for name in ("OUT", "KV"))
    near, far = (work.kv_heads * kv / link.bandwidth for link in hardware.links)
    return Prices(
        pair=kernels.seconds_per_pair,
        launch=kernels.launch,
        host=kernels.host,
        merge=3 * out / hardware["memory.bandwidth"],  # two results are read, and one is written
        speeds=(),
        node=hardware.ranks_per_node,
        near=near,
        far=far,
        attend=attend_price(hardware),
    )


def prices_in(scenario: Scenario, work: Workload, ranks: int, hardware: Hardware) -> Prices:
    """Returns the prices of a machine, and the speeds of its ranks, in a scenario."""
    speeds = tuple(scenario.speed(ranks).tolist())
    machine = scenario.nodes(scenario.machine(hardware), ranks)
    return replace(search_prices(work, machine), speeds=speeds)


def rebuild(
    recipe: str,
    work: Workload,
    ranks: int,
    hardware: Hardware | str | Path,
    *,
    pass_: Pass = "forward",
    scenario: Scenario | Mapping[str, Any] | None = None,
) -> Plan:
    """Build the verified plan that a recipe of a search stands for, which is also its name.

    A recipe says how a plan is made, and prices of the machine what it is made of: where pieces
    are cut and who gets them. So the same recipe, workload, hardware and scenario give the same
    plan, on any machine. Raises PlanError for a text that is no recipe and for what cannot be
    built, RingloomError for unknown hardware and a wrong scenario.
    """
    check_request(work, ranks, "rebuild(recipe, work, ranks, hardware)")
    if pass_ not in ("forward", "backward"):
        raise PlanError(f"a recipe is of a forward or a backward plan, not of {brief(pass_)}")
    what_if = scenario_of(scenario or {})
    prices = prices_in(what_if, work, ranks, find_hardware(hardware))
    return build(Recipe.parse(recipe), work, ranks, pass_, prices)
