"""Groups of ranks: the links that lead into and out of each, and the least latency of a message."""

from collections.abc import Iterator
from typing import NamedTuple

from simulator.network.routes import Routes
from simulator.network.topology import Place


class Group(NamedTuple):
    """Ranks of a group, and bytes/s of all links into it, and out of it, together."""

    ranks: int
    into: float
    out: float


def divisions(routes: Routes) -> Iterator[tuple[str, set[Group]]]:
    """Yield each way to divide the ranks into groups with a word for one of them: rank, node, half.

    Groups that are alike are one. Slow and cut links count as they are.
    """
    topology = routes.topology
    every: dict[Place, int] = {rank: rank for rank in range(topology.ranks)}
    for name, number in [("rank", every), *topology.divisions]:
        count = max(number.values()) + 1
        sizes, into, out = [0] * count, [0.0] * count, [0.0] * count
        for place, group in number.items():
            sizes[group] += isinstance(place, int)
        for a, b, link in routes.graph.edges(data=True):
            source, target = number.get(a), number.get(b)
            if source != target:
                if source is not None:
                    out[source] += link["bandwidth"]
                if target is not None:
                    into[target] += link["bandwidth"]
        yield name, set(map(Group, sizes, into, out))


def least_alpha(routes: Routes) -> float:
    """Return a latency that no message betters: of a direct link, or of a first and a last one."""
    infinite = float("inf")
    least = {(True, True): infinite, (True, False): infinite, (False, True): infinite}
    for a, b, link in routes.graph.edges(data=True):
        kind = isinstance(a, int), isinstance(b, int)
        least[kind] = min(least.get(kind, 0.0), link.get("alpha", 0.0))
    alpha = min(least[True, True], least[True, False] + least[False, True])
    return alpha if alpha < infinite else 0.0
