"""Ports, bandwidth and latency of messages, for whole moves at once.

NodePorts   as the hardware's constants say: a rank has one port out and one in for the links
            inside its node, and one of each for those between nodes
LinkPorts   on a topology: the first and the last link of the way
"""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from planner.ir import Move
from simulator.hardware import Hardware
from simulator.network.routes import Traffic

Floats = NDArray[np.float64]
Index = NDArray[np.integer]
Taken = tuple[Index, Index, Floats | float, Floats | float, Floats | float]


class Ports(Protocol):
    """Numbers its ports; `out` and `into` are how many there are of each."""

    out: int
    into: int

    def of(self, move: Move) -> Taken:
        """Return (out port, in port, bytes/s, alpha in s, share of the chip) of messages."""
        ...


class NodePorts:
    """Ports inside the node, numbered like ranks, then those between nodes."""

    def __init__(self, hardware: Hardware, ranks: int, share: float | None = None) -> None:
        self._ranks, self._links = ranks, hardware.links
        self._node = np.arange(ranks) // hardware.ranks_per_node
        self._one = ranks <= hardware.ranks_per_node
        self._alpha = np.array([link.alpha for link in self._links])
        self._bandwidth = np.array([link.bandwidth for link in self._links])
        shares = [link.share if share is None else share for link in self._links]
        self._share = np.array(shares)
        self.out = self.into = ranks if self._one else 2 * ranks

    def of(self, move: Move) -> Taken:
        """Return ports and link of each message: near if it stays in its node, else far."""
        if self._one:
            near = self._links[0]
            return move.src, move.dst, near.bandwidth, near.alpha, float(self._share[0])
        far = (self._node[move.src] != self._node[move.dst]).astype(np.intp)
        first = far * self._ranks
        ends = first + move.src, first + move.dst
        return *ends, self._bandwidth[far], self._alpha[far], self._share[far]


class LinkPorts:
    """Ports of a topology, for plans whose messages share no link beyond those of their ports."""

    def __init__(self, traffic: Traffic, share: float | None = None) -> None:
        self._traffic = traffic
        self._alpha = np.array([path.alpha for path in traffic.paths])
        self._bandwidth = np.array([path.bandwidth for path in traffic.paths])
        shares = [path.share if share is None else share for path in traffic.paths]
        self._share = np.array(shares, np.float64)
        self.out, self.into = (int(p.max(initial=-1)) + 1 for p in (traffic.out, traffic.into))

    def of(self, move: Move) -> Taken:
        """Return ports and way of each message, by its pair of ranks."""
        pair, traffic = self._traffic.pair(move.src, move.dst), self._traffic
        ends = traffic.out[pair], traffic.into[pair]
        return *ends, self._bandwidth[pair], self._alpha[pair], self._share[pair]
