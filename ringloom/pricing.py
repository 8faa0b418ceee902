"""search_prices(work, hardware, pass_)   what a search is told of a machine."""

from planner.ir import TENSORS, Pass
from planner.search import Prices
from planner.workload import Workload
from simulator.costs.kernels import Kernels
from simulator.costs.prices import attend_price
from simulator.hardware import Hardware


def search_prices(work: Workload, hardware: Hardware, pass_: Pass) -> Prices:
    """Returns the seconds of pairs, calls, merges and keys on a machine, for `planner.search`."""
    kernels = Kernels(hardware, work, pass_)
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
