"""Ports, bandwidth and latency of all messages of a move.

node_ports   from the hardware's constants: a rank has one out-port and one in-port for the links
             inside its node, and one of each for links between nodes
link_ports   on a topology: the first and the last link of the route
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from ringloom.planner.columns import as_index
from ringloom.planner.ir import Move
from ringloom.simulator.hardware import Hardware, Link
from ringloom.simulator.network.routes import Path, Traffic

Floats = NDArray[np.float64]
Index = NDArray[np.integer]
Costs = tuple[Index, Index, Floats, Floats, Floats]
Numbers = Callable[[Move], tuple[Index, Index, Index | int]]


class Ports:
    """The numbers of ports, `out` and `into`, and the routes of messages between them.

    `numbers` returns the ports and the route of each message; `share` overrides theirs.
    """

    def __init__(
        self,
        out: int,
        into: int,
        numbers: Numbers,
        routes: Sequence[Link | Path],
        share: float | None,
    ) -> None:
        rows = [(w.bandwidth, w.alpha, w.share if share is None else share) for w in routes]
        self.out, self.into, self._numbers = out, into, numbers
        self._routes = np.array(rows, np.float64).reshape(-1, 3).T

    def of(self, move: Move) -> Costs:
        """Returns (out port, in port, bytes/s, alpha in s, share of the chip) of messages."""
        out, into, route = self._numbers(move)
        bandwidth, alpha, share = self._routes
        return out, into, bandwidth[route], alpha[route], share[route]


def node_ports(hardware: Hardware, ranks: int, share: float | None = None) -> Ports:
    """Returns the ports inside nodes, numbered like ranks, then the ports between nodes."""
    node, one_node = np.arange(ranks) // hardware.ranks_per_node, ranks <= hardware.ranks_per_node

    def numbers(move: Move) -> tuple[Index, Index, Index | int]:
        if one_node:
            return as_index(move.src), as_index(move.dst), 0
        far = as_index(node.take(move.src) != node.take(move.dst))
        return far * ranks + move.src, far * ranks + move.dst, far

    count = ranks if one_node else 2 * ranks
    return Ports(count, count, numbers, hardware.links, share)


def link_ports(traffic: Traffic, share: float | None = None) -> Ports:
    """Returns the ports of a plan whose messages share no links other than their ports."""

    def numbers(move: Move) -> tuple[Index, Index, Index]:
        pair = traffic.pair(move.src, move.dst)
        return traffic.out[pair], traffic.into[pair], pair

    out, into = (int(ports.max(initial=-1)) + 1 for ports in (traffic.out, traffic.into))
    return Ports(out, into, numbers, traffic.paths, share)
