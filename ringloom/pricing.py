"""search_prices(work, hardware)         returns the costs on a machine, for a search.
rebuild(recipe, work, ranks, hardware)   builds the plan of a recipe on a machine.
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
    """Returns the seconds that pairs, calls, merges and key transfers cost on a machine.

    A search uses the forward prices in both passes, because the passes must share one layout.
    """
    kernels = Kernels(hardware, work, "forward")
    out, kv = (TENSORS[name].bytes_per_token(work, finished=False) for name in ("OUT", "KV"))
    near, far = (work.kv_heads * kv / link.bandwidth for link in hardware.links)
    return Prices(
        pair=kernels.seconds_per_pair,
        launch=kernels.launch,
        host=kernels.host,
        merge=3 * out / hardware["memory.bandwidth"],  # reads two results and writes one
        speeds=(),
        node=hardware.ranks_per_node,
        near=near,
        far=far,
        attend=attend_price(hardware),
    )


def prices_in(scenario: Scenario, work: Workload, ranks: int, hardware: Hardware) -> Prices:
    """Returns the prices of a machine in a scenario, with the speeds of its ranks."""
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
    """Builds the verified plan of a search recipe, which is also the plan's name.

    The recipe defines the construction. The prices of the machine decide where pieces are cut and
    which rank gets each piece. The same recipe, workload, hardware and scenario always give the
    same plan.
    Raises PlanError for invalid recipes and for plans that cannot be built, RingloomError for
    unknown hardware and invalid scenarios.
    """
    check_request(work, ranks, "rebuild(recipe, work, ranks, hardware)")
    if pass_ not in ("forward", "backward"):
        raise PlanError(f"pass_ must be 'forward' or 'backward' for a recipe, not {brief(pass_)}")
    what_if = scenario_of(scenario or {})
    prices = prices_in(what_if, work, ranks, find_hardware(hardware))
    return build(Recipe.parse(recipe), work, ranks, pass_, prices)
