"""topology ::= ranks, switches and NICs joined by links, one way each

switch      0 1 2 3 -- s0                        every rank has one port, the switch never blocks
nodes       0 1 -- s0   2 3 -- s1   0 1 2 3 -- fabric           one NIC per GPU
nodes:nics  0 1 -- s0   0 1 -- n0.0 -- fabric -- n1.0 -- 2 3    NICs shared by the ranks of a node
ring        0 -- 1 -- 2 -- 3 -- 0
torus:2x2   rank = x * 2 + y, a link to both neighbours on every axis

A place is a rank's number or the name of a switch or NIC. A link has a bandwidth [bytes/s], a
latency alpha [s] and the share of the chip that a transfer over it takes from compute.
"""

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import networkx as nx

from planner.errors import PlanError
from simulator.hardware import Hardware, Link

Place = int | str
LARGEST_FILE = 2**24  # bytes


@dataclass(frozen=True, eq=False)
class Topology:
    """A networkx graph of places; its edges carry `bandwidth` and may carry `alpha` and `share`.

    An undirected graph has every link both ways. `relays`: whether ranks pass on what is not
    theirs, as TPUs and rings do and GPUs behind a switch do not. `shape`: the axes of a torus,
    along which messages are routed in order. Raises PlanError for missing ranks and for links that
    make no sense.
    """

    name: str
    ranks: int
    graph: nx.DiGraph
    relays: bool = True
    shape: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.graph.is_directed():
            object.__setattr__(self, "graph", self.graph.to_directed())
        places = set(self.graph.nodes)
        if missing := [r for r in range(self.ranks) if r not in places]:
            raise PlanError(f"topology {self.name}: rank {missing[0]} has no link")
        if more := [p for p in places if isinstance(p, int) and not 0 <= p < self.ranks]:
            raise PlanError(f"topology {self.name}: rank {more[0]} of {self.ranks} ranks")
        for a, b, link in self.graph.edges(data=True):
            _check(f"topology {self.name}: link {a}-{b}", link)


def _check(where: str, link: dict[str, Any]) -> None:
    for key in ("bandwidth", "alpha", "share"):
        value: Any = link.get(key, None if key == "bandwidth" else 0.0)
        plain = isinstance(value, int | float) and not isinstance(value, bool)
        if not plain or not math.isfinite(value):
            raise PlanError(f"{where}: {key} is {value!r}, not a finite number")
        if value < 0 or (key == "bandwidth" and not value) or (key == "share" and value >= 1):
            raise PlanError(f"{where}: {key} = {value:g} makes no sense")


def _join(graph: nx.DiGraph, a: Place, b: Place, link: Link, hops: int = 1) -> None:
    """A link each way."""
    for u, v in ((a, b), (b, a)):
        about = {"bandwidth": link.bandwidth, "alpha": link.alpha, "share": link.share}
        graph.add_edge(u, v, hops=hops, **about)


def _half(link: Link) -> Link:
    """One of the two hops over a switch: its latency is that of the whole way."""
    return Link(link.alpha / 2, link.bandwidth, link.share)


def switch(ranks: int, link: Link) -> Topology:
    """All ranks behind one switch that never blocks."""
    return _of_nodes("switch", ranks, max(1, ranks), link, link, 0)


def nodes(hardware: Hardware, ranks: int, nics: int = 0) -> Topology:
    """Nodes behind switches, joined by `nics` NICs that a node's ranks share; 0: one per rank."""
    intra, inter = hardware.links
    name = f"nodes:nics={nics}" if nics else "nodes"
    return _of_nodes(name, ranks, hardware.ranks_per_node, intra, inter, nics)


def _of_nodes(
    name: str, ranks: int, per_node: int, intra: Link, inter: Link, nics: int
) -> Topology:
    graph = nx.DiGraph()
    graph.add_nodes_from(range(ranks))
    for rank in range(ranks):
        node, seat = divmod(rank, per_node)
        _join(graph, rank, f"s{node}", _half(intra))
        if ranks <= per_node:
            continue
        if not nics:
            _join(graph, rank, "fabric", _half(inter))
        for turn in range(nics):  # its own NIC first; the others, further off, for detours
            nic = f"n{node}.{(seat * nics // per_node + turn) % nics}"
            _join(graph, rank, nic, Link(0.0, inter.bandwidth, inter.share), hops=2 if turn else 1)
            _join(graph, nic, "fabric", _half(inter))
    return Topology(name, ranks, graph, relays=False)


def torus(shape: tuple[int, ...], link: Link) -> Topology:
    """A torus of any number of axes; rank numbers run along the last axis first."""
    if not shape or min(shape) < 1:
        raise PlanError(f"a torus has axes of 1 rank or more, not {'x'.join(map(str, shape))}")
    graph, ranks = nx.DiGraph(), math.prod(shape)
    graph.add_nodes_from(range(ranks))
    for place in product(*map(range, shape)):
        for axis, length in enumerate(shape):
            if length > 1:
                _join(graph, number(place, shape), number(moved(place, shape, axis), shape), link)
    name = "torus:" + "x".join(map(str, shape))
    return Topology(name, ranks, graph, shape=shape)


def number(place: tuple[int, ...], shape: tuple[int, ...]) -> int:
    """The rank at a place of a torus."""
    rank = 0
    for at, length in zip(place, shape, strict=True):
        rank = rank * length + at
    return rank


def moved(place: tuple[int, ...], shape: tuple[int, ...], axis: int, by: int = 1) -> Any:
    """The place some steps further along an axis."""
    return (*place[:axis], (place[axis] + by) % shape[axis], *place[axis + 1 :])


def ring(ranks: int, link: Link) -> Topology:
    """Each rank is linked with the next, the last with the first."""
    return Topology("ring", ranks, torus((ranks,), link).graph, shape=(ranks,))


def given(links: Iterable[tuple[Place, Place, float, float]], ranks: int, name: str) -> Topology:
    """A topology from two-way links (place, place, bytes/s, alpha in s)."""
    graph = nx.DiGraph()
    for a, b, bandwidth, alpha in links:
        _join(graph, a, b, Link(alpha, bandwidth))
    return Topology(name, ranks, graph)


def topology(spelled: str, hardware: Hardware, ranks: int) -> Topology:
    """A topology as the command line spells it: nodes, nodes:nics=2, switch, ring, torus:4x4.

    Anything else is a JSON file {"links": [[0, 1, bandwidth, alpha], ...]} with two-way links
    between ranks and named places. Raises PlanError for what is none of these, or does not fit.
    """
    name, _, rest = spelled.partition(":")
    link = hardware.links[0]
    match name, rest:
        case ("nodes" | "switch" | "ring", ""):
            built = {"nodes": nodes(hardware, ranks)} if name == "nodes" else {}
            built |= {"switch": switch(ranks, link), "ring": ring(ranks, link)}
            return built[name]
        case ("nodes", _) if rest.startswith("nics=") and rest[5:].isdecimal() and int(rest[5:]):
            return nodes(hardware, ranks, int(rest[5:]))
        case ("torus", _) if rest and all(axis.isdecimal() for axis in rest.split("x")):
            return _fitting(torus(tuple(map(int, rest.split("x"))), link), ranks)
    if not Path(spelled).is_file():
        forms = "nodes, nodes:nics=2, switch, ring, torus:4x4"
        raise PlanError(f"unknown topology {spelled[:200]!r}: neither a file nor one of {forms}")
    return read(Path(spelled), ranks)


def _fitting(found: Topology, ranks: int) -> Topology:
    if found.ranks != ranks:
        raise PlanError(f"{found.name} has {found.ranks} ranks, the plan has {ranks}")
    return found


def read(path: Path, ranks: int) -> Topology:
    """The topology of a JSON file; raises PlanError, in one line, where it is not one."""
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise ValueError(f"the file is larger than {LARGEST_FILE} bytes")
        content = json.loads(path.read_text(encoding="utf-8"))
        links = [tuple(row) if len(row) == 4 else (*row, 0.0) for row in content["links"]]
        for a, b, _, _ in links:
            for place in (a, b):
                if isinstance(place, bool) or not isinstance(place, int | str):
                    raise ValueError(f"a place is a rank or a name, not {place!r}")
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        form = '{"links": [[0, 1, bandwidth, alpha], ...]}'
        why = " ".join(str(error).split())[:200]
        raise PlanError(f"topology file {path}: not of the form {form}: {why}") from None
    return given(links, ranks, path.stem)
