"""Limits of links: the ports of ranks and nodes, the least latency, the widest link."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.partitions import Ints
from simulator.hardware import Hardware
from simulator.network.routes import Routes

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Reach:
    """Limits of links for lower bounds; `node` [ranks] numbers the nodes.

    `out` and `into` [ranks] are bytes/s of all ports of a rank, `gate` [nodes] those of a node
    towards the others. `near` and `far`: (alpha, bandwidth) that no message inside a node, or
    between nodes, betters.
    """

    node: Ints
    out: Floats
    into: Floats
    gate: Floats
    near: tuple[float, float]
    far: tuple[float, float]

    @staticmethod
    def of_hardware(hardware: Hardware, ranks: int) -> "Reach":
        """Return the limits by the hardware's constants, one NIC per rank."""
        node = (np.arange(ranks) // hardware.ranks_per_node).astype(np.int32)
        intra, inter = hardware.links
        several = ranks > hardware.ranks_per_node
        ports = np.full(ranks, intra.bandwidth + (inter.bandwidth if several else 0.0))
        gate: Floats = np.bincount(node).astype(np.float64) * inter.bandwidth
        far = inter.alpha, inter.bandwidth
        near = intra.alpha, intra.bandwidth
        if several:  # two ranks of a node may reach each other by way of another node
            near = min(near[0], far[0]), max(near[1], far[1])
        return Reach(node, ports, ports, gate, near, far)

    @staticmethod
    def of_routes(routes: Routes) -> "Reach":
        """Return the limits of a topology, slow and cut links included; a rank is its own node."""
        ranks = routes.topology.ranks
        out, into = np.zeros((2, ranks))
        least, widest = np.inf, 0.0
        for a, b, link in routes.graph.edges(data=True):
            for ports, place in ((out, a), (into, b)):
                if isinstance(place, int):
                    ports[place] += link["bandwidth"]
            if isinstance(b, int):
                widest = max(widest, link["bandwidth"])
                least = min(least, link.get("alpha", 0.0))
        best = (least if np.isfinite(least) else 0.0), widest or 1.0
        return Reach(np.arange(ranks, dtype=np.int32), out, into, out, best, best)

    @property
    def least_alpha(self) -> float:
        """Return the least latency of any message between two ranks."""
        return self.near[0]

    def alpha(self, src: NDArray[np.int32], dst: NDArray[np.int32]) -> Floats:
        """Return the least latency of messages between ranks, broadcast together."""
        return np.where(self.node[src] == self.node[dst], self.near[0], self.far[0])

    def bandwidth(self, src: NDArray[np.int32], dst: NDArray[np.int32]) -> Floats:
        """Return the most bytes/s of messages between ranks, broadcast together."""
        return np.where(self.node[src] == self.node[dst], self.near[1], self.far[1])
