"""topology ::= ranks, switches and NICs, joined by one-way links

switch      0 1 2 3 -- s0                        every rank has one port, the switch never blocks
nodes       0 1 -- s0   2 3 -- s1   0 1 2 3 -- fabric           one NIC per GPU
nodes:nics  0 1 -- s0   0 1 -- n0.0 -- fabric -- n1.0 -- 2 3    NICs shared by the ranks of a node
ring        0 -- 1 -- 2 -- 3 -- 0
torus:2x2   rank = x * 2 + y, a link to both neighbours on every axis
pod         the most even torus with the hardware's axes, ranks along a walk, closed if possible

A place is a rank's number or the name of a switch or NIC. A link has a bandwidth [bytes/s], a
latency alpha [s] and the share of the chip that a transfer over the link takes from compute. A kind
of topology is one function of hardware, ranks and parameters, registered by `kind`.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np

from ringloom.planner.disk import from_json, is_file, read
from ringloom.planner.errors import RingloomError, brief, nearest
from ringloom.planner.given import parse_integer, require_integer, require_name, require_number
from ringloom.simulator.hardware import Hardware, Link
from ringloom.simulator.hardware import hardware as hardware_named

Place = int | str
Build = Callable[..., "Topology"]
Links = Iterable[tuple[Place, Place, float, float]]  # two-way links: bytes/s, alpha in s
LARGEST_FILE = 2**22  # bytes, of about 60,000 links
MOST_NICS = 256  # of a node


@dataclass(frozen=True, eq=False)
class Topology:
    """A networkx graph of places; its edges have a `bandwidth` and may have `alpha` and `share`.

    In an undirected graph every link is two-way. `relays`: True if ranks forward messages of other
    ranks, as in TPU pods and rings, but not behind a switch. `route(src, dst, among)` returns the
    places that a message passes if no link is cut; `among`: of many messages from one source, which
    use a tree (see `relays`). Without `route`, messages take the fewest hops.
    `divisions` are groups of ranks with few links between groups: a name for the groups, and the
    group of each place that has one. Raises RingloomError for missing ranks and invalid links.
    """

    name: str
    ranks: int
    graph: nx.DiGraph
    relays: bool = True
    route: Callable[[int, int, bool], list[Place]] | None = None
    divisions: tuple[tuple[str, Mapping[Place, int]], ...] = ()
    spare: frozenset[Place] = frozenset()  # chips without a rank of the plan

    def __repr__(self) -> str:
        return f"<Topology {self.name}: {self.ranks} ranks, {self.graph.number_of_edges()} links>"

    def placed(self, places: Sequence[int]) -> "Topology":
        """Returns the topology of the ranks at these places, with links named by ranks.

        Messages may pass other places, named p4 after their number, only if ranks relay. Raises
        RingloomError for places that do not exist or occur twice.
        """
        if missing := [place for place in places if not 0 <= place < self.ranks]:
            limits = f"topology {self.name} has places 0 to {self.ranks - 1}"
            raise RingloomError(f"{limits}, not {missing[0]}")
        if len({*places}) < len(places):
            raise RingloomError("a placement names each place once")
        names: dict[Place, Place] = {place: f"p{place}" for place in range(self.ranks)}
        spare = {names[place] for place in names.keys() - {*places}}
        names |= {place: rank for rank, place in enumerate(places)}
        route, graph = self.route, nx.relabel_nodes(self.graph, names)
        if spare and not self.relays:
            graph.remove_nodes_from(spare)

        def along(src: int, dst: int, among: bool) -> list[Place]:
            assert route is not None
            return [names.get(place, place) for place in route(places[src], places[dst], among)]

        return replace(
            self,
            ranks=len(places),
            graph=graph,
            route=along if route else None,
            divisions=tuple(
                (name, {names.get(place, place): group for place, group in groups.items()})
                for name, groups in self.divisions
            ),
            spare=self.spare | spare,
        )

    def __post_init__(self) -> None:
        if not self.graph.is_directed():
            object.__setattr__(self, "graph", self.graph.to_directed())
        places = set(self.graph.nodes)
        if missing := [r for r in range(self.ranks) if r not in places]:
            raise RingloomError(f"topology {self.name}: rank {missing[0]} has no link")
        if invalid := [p for p in places if isinstance(p, int) and not 0 <= p < self.ranks]:
            raise RingloomError(f"topology {self.name}: rank {invalid[0]} of {self.ranks} ranks")
        for a, b, link in self.graph.edges(data=True):
            _check(f"topology {self.name}: link {a}-{b}", link)


def _check(where: str, link: dict[str, Any]) -> None:
    for key in ("bandwidth", "alpha", "share"):
        value = require_number(
            f"{where}: {key}", link.get(key, None if key == "bandwidth" else 0.0)
        )
        if value < 0 or (key == "bandwidth" and not value) or (key == "share" and value >= 1):
            raise RingloomError(f"{where}: {key} = {value:g} is invalid")


# ---- kinds


@dataclass(frozen=True)
class Kind:
    """A kind of topology, and examples of its names; a form with a colon has parameters."""

    build: Build
    forms: tuple[str, ...]


KINDS = dict[str, Kind]()


def kind(*forms: str) -> Callable[[Build], Build]:
    """Registers `build(hardware, ranks[, parameters])` under the first word of its forms.

    The parameters are the text after the colon; after a ValueError, the error lists the forms.
    """

    def register(build: Build) -> Build:
        KINDS[forms[0].partition(":")[0]] = Kind(build, forms)
        return build

    return register


def forms() -> str:
    """Returns all forms of all kinds: nodes, nodes:nics=2, ..."""
    return ", ".join(form for kind in KINDS.values() for form in kind.forms)


def join(graph: nx.DiGraph, a: Place, b: Place, link: Link, hops: int = 1) -> None:
    """Adds a link in each direction; messages take the route with the fewest hops."""
    for u, v in ((a, b), (b, a)):
        values = {"bandwidth": link.bandwidth, "alpha": link.alpha, "share": link.share}
        graph.add_edge(u, v, hops=hops, **values)


def half(link: Link) -> Link:
    """Returns one of the two hops over a switch, with half the link's latency."""
    return Link(link.alpha / 2, link.bandwidth, link.share)


@kind("nodes", "nodes:nics=2")
def nodes(hardware: Hardware, ranks: int, parameters: str = "") -> Topology:
    """Joins nodes with a switch each, by one NIC per rank or by `nics=` NICs per node."""
    nics, per_node = 0, hardware.ranks_per_node
    if parameters:
        key, _, count = parameters.partition("=")
        nics = parse_integer(count) if count.isdecimal() else 0
        if key != "nics" or not 1 <= nics <= MOST_NICS:
            raise ValueError(f"{parameters} is not nics=1 to {MOST_NICS}")
    name = f"nodes:nics={nics}" if nics else "nodes"
    return _of_nodes(name, ranks, per_node, hardware.links, nics)


@kind("switch")
def switch(hardware: Hardware, ranks: int) -> Topology:
    """Puts all ranks behind one switch that never blocks."""
    return _of_nodes("switch", ranks, max(1, ranks), hardware.links, 0)


def _of_nodes(
    name: str, ranks: int, per_node: int, links: tuple[Link, Link], nics: int
) -> Topology:
    graph, (intra, inter) = nx.DiGraph(), links
    graph.add_nodes_from(range(ranks))
    group = dict[Place, int]()
    for rank in range(ranks):
        node, seat = divmod(rank, per_node)
        group |= {rank: node, f"s{node}": node}
        join(graph, rank, f"s{node}", half(intra))
        if ranks <= per_node:
            continue
        if not nics:
            join(graph, rank, "fabric", half(inter))
        for offset in range(nics):  # the rank's NIC first; farther ones only for detours
            nic = f"n{node}.{(seat * nics // per_node + offset) % nics}"
            group[nic] = node
            join(graph, rank, nic, Link(0.0, inter.bandwidth, inter.share), hops=2 if offset else 1)
            join(graph, nic, "fabric", half(inter))
    divisions = (("node", group),) if ranks > per_node else ()
    return Topology(name, ranks, graph, relays=False, divisions=divisions)


@kind("ring")
def ring(hardware: Hardware, ranks: int) -> Topology:
    """Links each rank with the next one, and the last with the first."""
    return replace(torus(hardware, ranks, str(ranks)), name="ring")


@kind("torus:4x4")
def torus(hardware: Hardware, ranks: int, axes: str) -> Topology:
    """Builds a torus of any number of axes; rank numbers run along the last axis first.

    Messages go axis by axis in the shorter direction, upwards if both are equally long.
    """
    if (places := math.prod(shape := axes_of(axes))) > ranks:  # before it is built
        raise RingloomError(f"topology torus:{axes} has {places} ranks, the plan has {ranks}")
    return grid(hardware, shape)


def axes_of(axes: str) -> tuple[int, ...]:
    """Returns the lengths of axes, such as 4x4; raises ValueError for anything else."""
    if not all(map(str.isdecimal, lengths := axes.split("x"))):
        raise ValueError(f"{axes} is not 4x4")
    return tuple(map(parse_integer, lengths))


def grid(hardware: Hardware, shape: tuple[int, ...], wrap: int = 1) -> Topology:
    """Builds a torus whose axes are closed if their length is a multiple of `wrap` or is 2."""
    if min(shape) < 1:
        raise RingloomError("a torus has axes of 1 rank or more, not " + "x".join(map(str, shape)))
    graph, link = nx.DiGraph(), hardware.links[0]
    closed = tuple(length % wrap == 0 for length in shape)
    graph.add_nodes_from(range(math.prod(shape)))
    halves = [dict[Place, int]() for _ in shape]
    for place in product(*map(range, shape)):
        for axis, length in enumerate(shape):
            halves[axis][_rank(place, shape)] = int(place[axis] >= length // 2)
            if length > 1 and (closed[axis] or place[axis] < length - 1):
                after = [at + (axis == n) for n, at in enumerate(place)]
                join(graph, _rank(place, shape), _rank(after, shape), link)
    name = "torus:" + "x".join(map(str, shape))
    divisions = tuple(("half", half) for half, n in zip(halves, shape, strict=True) if n > 1)
    route = partial(_along_axes, shape, closed)
    return Topology(name, len(graph), graph, route=route, divisions=divisions)


@kind("pod")
def pod(hardware: Hardware, ranks: int) -> Topology:
    """Joins ranks like the hardware; a torus has the hardware's axes, as even as possible."""
    if hardware.node in ("mesh", "pcie"):
        return KINDS[hardware.node].build(hardware, ranks)
    if hardware.node != "torus" or ranks > hardware.ranks_per_node:
        return nodes(hardware, ranks)
    axes = int(hardware.option("node.axes"))
    shape, remaining = list[int](), ranks
    for axis in range(axes, 0, -1):
        most = round(remaining ** (1 / axis))
        shape.append(
            next(n for n in range(most, 0, -1) if remaining % n == 0) if axis > 1 else remaining
        )
        remaining //= shape[-1]
    shape.sort(key=lambda length: (length % 2, -length))  # an even axis first, for the walk
    torus = grid(hardware, tuple(shape), int(hardware.option("node.wrap")))
    return torus.placed([_rank(place, shape) for place in _walk(tuple(shape))])


def _walk(shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Returns all places in an order of neighbours; if possible, the last is next to the first.

    Rows of the first axis alternate in direction without their first places, which lead back.
    """
    first, across = shape[0], _to_and_fro(shape[1:])
    if first % 2 or len(across) == 1:
        return _to_and_fro(shape)
    walk = [(0, *place) for place in across]
    for row in range(1, first):
        walk += [(row, *place) for place in (across[1:] if row % 2 == 0 else across[:0:-1])]
    return walk + [(row, *across[0]) for row in range(first - 1, 0, -1)]


def _to_and_fro(shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    if not shape:
        return [()]
    inner = _to_and_fro(shape[1:])
    rows = (inner if row % 2 == 0 else inner[::-1] for row in range(shape[0]))
    return [(row, *place) for row, places in enumerate(rows) for place in places]


def _rank(place: Iterable[int], shape: Sequence[int]) -> int:
    return int(np.ravel_multi_index(tuple(place), tuple(shape), mode="wrap"))


def _along_axes(
    shape: tuple[int, ...], closed: tuple[bool, ...], src: int, dst: int, among: bool
) -> list[Place]:
    """Returns the places from one rank to another, axis by axis.

    For messages `among` many, sources start with different axes, so that all links are used evenly.
    """
    at, end = (list(map(int, np.unravel_index(rank, shape))) for rank in (src, dst))
    places: list[Place] = [src]
    first = sum(at) % len(shape) if among else 0
    for axis in (*range(first, len(shape)), *range(first)):
        length, away = shape[axis], end[axis] - at[axis]
        ahead = away % length
        if closed[axis]:
            away = ahead if ahead <= length - ahead else ahead - length
        for _ in range(abs(away)):
            at[axis] += 1 if away > 0 else -1
            places.append(_rank(at, shape))
    return places


# ---- words, files and graphs


def topology(
    given: Topology | nx.Graph | str, hardware: Hardware | str | Path, ranks: int
) -> Topology:
    """Returns the topology of a word, a JSON file or a graph; returns a topology unchanged.

    Words: nodes, nodes:nics=2, switch, ring, torus:4x4. A file has {"links": [[0, 1, bandwidth,
    alpha], ...]}, two-way links between ranks and named places. In a networkx graph the nodes 0 to
    ranks - 1 are the ranks. Raises RingloomError for anything else, and if ranks do not fit.
    """
    if isinstance(given, str):
        given = _parsed(given, hardware_named(hardware), require_integer("ranks", ranks, 1))
    elif isinstance(given, nx.Graph):
        given = Topology(given.name or "given", ranks, given)
    if not isinstance(given, Topology):
        raise RingloomError(
            f"a topology is one of {forms()}, a file or a graph, not {brief(given)}"
        )
    if given.ranks != ranks:
        numbers = f"topology {given.name} has {given.ranks} ranks, the plan has {ranks}"
        hint = "; choose places with a placement" * (given.ranks > ranks)
        raise RingloomError(f"{numbers}{hint}")
    return given


def _parsed(word: str, hardware: Hardware, ranks: int) -> Topology:
    name, *parameters = word.split(":", 1)
    valid_forms = KINDS[name].forms if name in KINDS else ()
    if any((":" in form) == (":" in word) for form in valid_forms):
        try:
            return KINDS[name].build(hardware, ranks, *parameters)
        except RingloomError:
            raise
        except ValueError:
            pass  # parameters that the kind cannot read
    if not is_file(word):
        near = nearest(name, KINDS)
        hint = f"; did you mean {near}?" if near and near != name else ""
        raise RingloomError(
            f"unknown topology {brief(word)}: neither a file nor one of {forms()}{hint}"
        )
    return topology(graph_of(Path(word)), hardware, ranks)


def graph_of(path: Path) -> nx.DiGraph:
    """Reads the graph of a JSON file of links; raises RingloomError for any other file."""
    form = '{"links": [[0, 1, bandwidth, alpha], ...]}'
    error = f"topology file {path}: not of the form {form}"
    graph = graph_of_links(read(path, _links, error, LARGEST_FILE))
    graph.name = path.stem
    return graph


def _links(content: bytes) -> Links:
    rows = from_json(content, LARGEST_FILE)["links"]
    links = [tuple(row) if len(row) == 4 else (*row, 0.0) for row in rows]
    seen = set[frozenset[Place]]()
    for a, b, _, _ in links:
        if (ends := frozenset((a, b))) in seen:
            raise ValueError(f"the link {brief(a)}-{brief(b)} is named twice")
        seen.add(ends)
        for place in (a, b):
            if isinstance(place, bool) or not isinstance(place, int | str):
                raise ValueError(f"a place is a rank or a name, not {brief(place)}")
            require_name("a place", str(place))
    return links


def graph_of_links(links: Links) -> nx.DiGraph:
    """Returns the graph of two-way links."""
    graph = nx.DiGraph()
    for a, b, bandwidth, alpha in links:
        join(graph, a, b, Link(alpha, bandwidth))
    return graph
