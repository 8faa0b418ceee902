"""Routes of messages over the links of a topology, some of which may be slow or cut.

The route between two ranks is the first of these that exists:

* a direct link, or two links over one switch
* the topology's own route, if none of its links is cut
* the route with the fewest hops, through other ranks only if the topology's ranks relay

Two ranks behind one switch may also name a slow or cut link: then their messages to each other are
slowed as if by a narrow link in the middle of their route.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import networkx as nx
import numpy as np
from numpy.typing import NDArray

from ringloom.planner.errors import PlanError, RingloomError
from ringloom.planner.given import parse_integer
from ringloom.planner.ir import Plan
from ringloom.simulator.hardware.schema import LARGEST, SMALLEST
from ringloom.simulator.network.topology import Place, Topology

Links = Mapping[tuple[Place, Place], float]  # factor on the bandwidth, both ways; 0 is a cut link
Floats = NDArray[np.float64]
Route = tuple[int, ...]  # numbers of links
Tree = dict[Place, list[Place]]  # the places on the route to each place
CUT = 0.0


def name_of(ends: tuple[Place, Place]) -> str:
    """Returns the name of a link, such as 6-7 or 3-s0."""
    return f"{ends[0]}-{ends[1]}"


def ends_of(name: str) -> tuple[Place, Place]:
    """Returns the two places in a link's name; raises ValueError unless it is A-B."""
    if not (ends := re.fullmatch(r"([^\s,=-]+)-([^\s,=-]+)", name)) or not name.isprintable():
        raise ValueError(name)
    a, b = (parse_integer(end) if end.isdecimal() else end for end in ends.groups())
    return a, b


@dataclass(frozen=True)
class Path:
    """The route of a message: links by number, and their properties together."""

    links: Route
    bandwidth: float  # of the narrowest, bytes/s
    alpha: float  # of all links together, seconds
    share: float  # the larger share of the chip that a transfer takes from compute at both ends


class Routes:
    """The routes between the ranks of a topology; `links` are (place, place) by number.

    Raises RingloomError for invalid factors and for links that do not exist, and PlanError, with
    the cut link, if no route is left.
    """

    def __init__(self, topology: Topology, faults: Links | None = None) -> None:
        self.topology, self.links = topology, list[tuple[Place, Place]]()
        self.bandwidth, self._number = list[float](), dict[tuple[Place, Place], int]()
        self._pairs, self._cut = dict[tuple[Place, Place], float](), list[tuple[Place, Place]]()
        self._trees = dict[int, Tree]()  # by source, cached: benchmarks/bench_engines.py, allgather
        self.graph = topology.graph.copy() if faults else topology.graph
        for ends, factor in (faults or {}).items():
            self._fault(ends, factor)

    def _fault(self, ends: tuple[Place, Place], factor: float) -> None:
        if factor != CUT and not SMALLEST <= factor <= LARGEST:
            raise RingloomError(
                f"link {name_of(ends)}: a factor is 0 (cut) or {SMALLEST:g} to {LARGEST:g},"
                f" not {factor:g}"
            )
        edges = [e for e in (ends, ends[::-1]) if self.graph.has_edge(*e)]
        for e in edges:
            if factor == CUT:
                self.graph.remove_edge(*e)
            else:
                self.graph.edges[e]["bandwidth"] *= factor
        switched = not self.topology.relays and ends[0] != ends[1]
        if not edges and not (switched and {*ends} <= {*range(self.topology.ranks)}):
            raise RingloomError(self._unknown_link(ends))
        if not edges:
            self._pairs.update({ends: factor, ends[::-1]: factor})
        if factor == CUT:
            self._cut += [ends, ends[::-1]]

    def _unknown_link(self, ends: tuple[Place, Place]) -> str:
        problem = f"topology {self.topology.name} has no link {name_of(ends)}"
        for place in ends:
            if place not in self.topology.graph:
                return f"{problem}: there is no {place}"
        near = ", ".join(map(str, list(self.topology.graph.successors(ends[0]))[:8]))
        return f"{problem}: {ends[0]} is linked with {near}"

    def path(self, src: int, dst: int) -> Path:
        """Returns the route from one rank to another."""
        places = self._places(src, dst)
        hops = list(pairwise(places))
        edges = [self.graph.edges[hop] for hop in hops]
        bandwidths = [float(edge["bandwidth"]) for edge in edges]
        links = [self._link(*hop) for hop in zip(hops, bandwidths, strict=True)]
        if (src, dst) in self._pairs:
            bandwidths.append(self._pairs[src, dst] * min(bandwidths))
            links.insert(len(links) // 2, self._link((src, dst), bandwidths[-1]))
        alpha = float(sum(edge.get("alpha", 0.0) for edge in edges))
        share = max(edges[0].get("share", 0.0), edges[-1].get("share", 0.0))
        return Path(tuple(links), min(bandwidths), alpha, share)

    def _link(self, ends: tuple[Place, Place], bandwidth: float) -> int:
        if ends not in self._number:
            self._number[ends] = len(self.links)
            self.links.append(ends)
            self.bandwidth.append(bandwidth)
        return self._number[ends]

    def _places(self, src: int, dst: int) -> list[Place]:
        if self._pairs.get((src, dst)) == CUT:
            raise PlanError(self._no_route(src, dst))
        if self.graph.has_edge(src, dst):
            return [src, dst]
        for middle in self.graph.successors(src):
            switch = not isinstance(middle, int) and middle not in self.topology.spare
            if switch and self.graph.has_edge(middle, dst):
                return [src, middle, dst]
        if self.topology.route:
            places = self.topology.route(src, dst, False)
            if all(map(self.graph.has_edge, places[:-1], places[1:])):
                return places
        return self._shortest(src, dst)

    def _shortest(self, src: int, dst: int) -> list[Place]:
        """Returns the route with the fewest hops; of several, that with the links added first."""
        if src not in self._trees:
            graph = self.graph
            if not self.topology.relays:
                graph = nx.subgraph_view(
                    graph, filter_edge=lambda a, b: a == src or not isinstance(a, int)
                )
            self._trees[src] = nx.single_source_dijkstra_path(graph, src, weight="hops")
        if dst not in self._trees[src]:
            raise PlanError(self._no_route(src, dst))
        return self._trees[src][dst]

    def _no_route(self, src: int, dst: int) -> str:
        cut = [ends for ends in self._cut if src in ends or dst in ends] or self._cut
        if not cut:
            return f"topology {self.topology.name}: there is no route from rank {src} to rank {dst}"
        link = name_of(cut[0])
        return f"link {link} is cut, and there is no other route from rank {src} to rank {dst}"


class Traffic:
    """The messages of one plan on the links of a topology, by pair of sender and receiver.

    A rank has one stream for each link over which it sends, and one for each link over which it
    receives. A stream handles one message at a time.
    """

    def __init__(self, plan: Plan, routes: Routes) -> None:
        ranks, self.routes = plan.ranks, routes
        keys = [np.unique(m.src.astype(np.int64) * ranks + m.dst) for _, m in plan.moves()]
        self.keys = np.unique(np.concatenate([*keys, np.zeros(0, np.int64)]))
        self._ranks = ranks
        pairs = [divmod(key, ranks) for key in self.keys.tolist()]
        self.paths = [routes.path(src, dst) for src, dst in pairs]
        ends = [(p.links[0], p.links[-1]) for p in self.paths]
        outs, ins = dict[int, int](), dict[int, int]()
        self.out = np.array([outs.setdefault(a, len(outs)) for a, _ in ends], np.intp)
        self.into = np.array([ins.setdefault(b, len(ins)) for _, b in ends], np.intp)
        self.shared = self._shared()

    def pair(self, src: NDArray[np.int32], dst: NDArray[np.int32]) -> NDArray[np.intp]:
        """Returns the number of the pair of each message: [rows]."""
        return np.searchsorted(self.keys, src.astype(np.int64) * self._ranks + dst)

    def _shared(self) -> frozenset[int]:
        """Returns the links that streams of several senders and of several receivers use.

        Other links never carry two messages together, because a stream handles one at a time.
        """
        outs = [set[int]() for _ in self.routes.links]
        ins = [set[int]() for _ in self.routes.links]
        for path, out, into in zip(self.paths, self.out.tolist(), self.into.tolist(), strict=True):
            for link in path.links:
                outs[link].add(out)
                ins[link].add(into)
        streams = enumerate(zip(outs, ins, strict=True))
        return frozenset(link for link, (a, b) in streams if len(a) > 1 and len(b) > 1)

    def seconds(self, src: Sequence[int], dst: Sequence[int], size: Sequence[float]) -> Floats:
        """Returns the seconds for which messages occupy each link, then each stream."""
        of_pair = np.zeros(len(self.paths))
        pair = self.pair(np.array(src, np.int32), np.array(dst, np.int32))
        np.add.at(of_pair, pair, np.array(size))
        links = np.zeros(len(self.routes.links))
        streams = np.zeros((2, len(self.paths)))
        for path, out, into, total in zip(self.paths, self.out, self.into, of_pair, strict=True):
            streams[[0, 1], [out, into]] += total / path.bandwidth
            for link in path.links:
                links[link] += total / self.routes.bandwidth[link]
        return np.concatenate([links, streams.reshape(-1)])

    @property
    def contended(self) -> bool:
        """True if messages of the plan may share a link."""
        return bool(self.shared)

    def example(self) -> str:
        """Returns the name of a link that messages may share."""
        return name_of(self.routes.links[min(self.shared)])
