"""Ports, bandwidth and latency of messages, for whole moves at once.

NodePorts   as the hardware's constants say: a rank has one port out and one in for the links
            inside its node, and one of each for those between nodes
LinkPorts   on a topology: the first and the last link of the way
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from planner.columns import index
from planner.ir import Move
from simulator.hardware import Hardware, Link
from simulator.network.routes import Path, Traffic

Floats = NDArray[np.float64]
Index = NDArray[np.integer]
Taken = tuple[Index, Index, Floats, Floats, Floats]


class Ports:
    """Numbers its ports, `out` and `into` of each, and the ways of messages between them."""

    out: int
    into: int

    def __init__(self, ways: Sequence[Link | Path], share: float | None) -> None:
        rows = [(w.bandwidth, w.alpha, w.share if share is None else share) for w in ways]
        self._ways = np.array(rows, np.float64).reshape(-1, 3).T

    def of(self, move: Move) -> Taken:
        """Return (out port, in port, bytes/s, alpha in s, share of the chip) of messages."""
        out, into, way = self._numbers(move)
        bandwidth, alpha, share = self._ways
        return out, into, bandwidth[way], alpha[way], share[way]

    def _numbers(self, move: Move) -> tuple[Index, Index, Index | int]:
        """Return the ports and the way of each message."""
        raise NotImplementedError


class NodePorts(Ports):
    """Ports inside the node, numbered like ranks, then those between nodes."""

    def __init__(self, hardware: Hardware, ranks: int, share: float | None = None) -> None:
        super().__init__(hardware.links, share)
        self._ranks, self._node = ranks, np.arange(ranks) // hardware.ranks_per_node
        self._one = ranks <= hardware.ranks_per_node
        self.out = self.into = ranks if self._one else 2 * ranks

    def _numbers(self, move: Move) -> tuple[Index, Index, Index | int]:
        if self._one:
            return index(move.src), index(move.dst), 0
        far = index(self._node.take(move.src) != self._node.take(move.dst))
        return far * self._ranks + move.src, far * self._ranks + move.dst, far


class LinkPorts(Ports):
    """Ports of a topology, for plans whose messages share no link beyond those of their ports."""

    def __init__(self, traffic: Traffic, share: float | None = None) -> None:
        super().__init__(traffic.paths, share)
        self._traffic = traffic
        self.out, self.into = (int(p.max(initial=-1)) + 1 for p in (traffic.out, traffic.into))

    def _numbers(self, move: Move) -> tuple[Index, Index, Index | int]:
        pair = self._traffic.pair(move.src, move.dst)
        return self._traffic.out[pair], self._traffic.into[pair], pair
