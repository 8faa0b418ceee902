"""Places of a plan's ranks on a machine that has more chips than the plan has ranks.

places_of        the checked place of each rank, such as 0, 8, 16, 24 of 32
ranks_per_node   the number of ranks of the plan on one node
placed_topology  the topology of all chips, with the plan's ranks at their places

With tensor parallelism of N, N adjacent chips share the heads of a rank. Then N groups of chips run
the same plan at the same time: rank r of group k is at the place of rank r, plus k. Groups whose
messages may take the same link share its bandwidth equally.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import networkx as nx
import numpy as np

from ringloom.planner.disk import is_file
from ringloom.planner.errors import RingloomError
from ringloom.simulator.hardware import Hardware
from ringloom.simulator.network.routes import Routes
from ringloom.simulator.network.topology import (
    KINDS,
    Place,
    Topology,
    axes_of,
    graph_of,
    pod,
    topology,
)

MOST_PLACES = 1 << 16  # of a machine


def places_of(
    placement: Sequence[int] | None, width: int, ranks: int, hardware: Hardware, *, by_nodes: bool
) -> list[int]:
    """Returns the place of each rank, which is the first of `width` adjacent chips.

    Raises RingloomError if places are too few, too many or used twice; with `by_nodes`, also if the
    chips of a rank are in two nodes of the hardware.
    """
    places = list(range(0, ranks * width, width)) if placement is None else [*placement]
    if len(places) != ranks:
        raise RingloomError(
            f"a placement gives each of the {ranks} ranks a place: {ranks} numbers, not"
            f" {len(places)}"
        )
    for place in places:
        if not 0 <= place <= MOST_PLACES - width:
            raise RingloomError(f"a place is 0 to {MOST_PLACES - width}, not {place}")
    for place, after in pairwise(sorted(places)):
        if place == after:
            raise RingloomError(f"a placement names each place once: {place} is named twice")
        if after - place < width:
            raise RingloomError(
                f"places {place} and {after} overlap: with tensor parallelism of {width}, each rank"
                f" takes {width} places"
            )
    per_node = hardware.ranks_per_node
    for place in places if by_nodes else ():
        if place // per_node != (place + width - 1) // per_node:
            sizes = [str(size) for size in range(1, per_node + 1) if per_node % size == 0]
            raise RingloomError(
                f"tensor parallelism of {width} does not fit the nodes of {hardware.name}:"
                f" places {place} to {place + width - 1} are in two nodes of {per_node};"
                f" use {', '.join(sizes)}, or another placement"
            )
    return places


def ranks_per_node(places: Sequence[int], hardware: Hardware) -> int:
    """Returns the number of ranks per node; 1 if ranks of a node do not have adjacent numbers."""
    node = np.array(places) // hardware.ranks_per_node
    size = int((node == node[0]).sum())
    first = node[::size]
    regular = (
        len({*first.tolist()}) == len(first) and (node == first.repeat(size)[: len(node)]).all()
    )
    return size if regular else 1


def placed_topology(
    network: Topology | nx.Graph | str | None,
    hardware: Hardware,
    places: Sequence[int],
    width: int,
) -> Topology:
    """Returns the topology of a plan whose ranks are at `places`; links have the names of ranks.

    Raises RingloomError if the topology lacks a place, and if its size is unknown.
    """
    least = max(places) + width
    chips = _chips_of(network, hardware, least, filled=least == len(places) * width)
    whole = pod(hardware, chips) if network is None else topology(network, hardware, chips)
    return (_shared(whole, places, width) if width > 1 else whole).placed(places)


def _chips_of(
    network: Topology | nx.Graph | str | None, hardware: Hardware, least: int, *, filled: bool
) -> int:
    """Returns the number of chips of a topology in which all places of ranks are below `least`.

    Graphs, files and torus:4x4 state their size. Other topologies have `least` chips, but rings and
    pods only if ranks have `filled` all places; otherwise, raises RingloomError.
    """
    word, _, parameters = network.partition(":") if isinstance(network, str) else ("", "", "")
    if word == "torus" and parameters:
        with suppress(ValueError):
            return math.prod(axes_of(parameters))
    if isinstance(network, Topology):
        return network.ranks
    if isinstance(network, str) and word not in KINDS and is_file(network):
        network = graph_of(Path(network))
    if isinstance(network, nx.Graph):
        return 1 + max((place for place in network if isinstance(place, int)), default=-1)
    shaped = word in ("ring", "pod") or (network is None and hardware.node == "torus")
    if shaped and not filled:
        raise RingloomError(
            f"with a placement on some chips of a {word or 'pod'}, state its size: --topology"
            f" torus:{least} for a ring of {least}, or torus:4x4"
        )
    return least


def _shared(whole: Topology, places: Sequence[int], width: int) -> Topology:
    """Divides the bandwidth of each link by the number of groups whose messages may take it."""
    if max(places) + width > whole.ranks:
        return whole  # `placed` names the missing place
    routes, groups = Routes(whole), defaultdict[tuple[Place, Place], set[int]](set)
    for group in range(width):
        for src in places:
            for dst in places:
                for link in routes.path(src + group, dst + group).links if src != dst else ():
                    groups[routes.links[link]].add(group)
    graph = whole.graph.copy()
    for ends, users in groups.items():
        graph.edges[ends]["bandwidth"] /= len(users)
    return replace(whole, graph=graph)
