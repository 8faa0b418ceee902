"""Nodes whose chips are joined without a switch: by a mesh or by a tree of PCIe links."""

from itertools import combinations, product

import networkx as nx

from ringloom.simulator.hardware import Hardware, Link
from ringloom.simulator.network.topology import Place, Topology, half, join, kind


@kind("mesh")
def mesh(hardware: Hardware, ranks: int) -> Topology:
    """Links every two ranks of a node, and each rank with the network by its own NIC."""
    graph, (intra, inter), per_node = nx.DiGraph(), hardware.links, hardware.ranks_per_node
    graph.add_nodes_from(range(ranks))
    for first in range(0, ranks, per_node):
        for a, b in combinations(range(first, min(first + per_node, ranks)), 2):
            join(graph, a, b, intra)
    for rank in range(ranks) if ranks > per_node else ():
        join(graph, rank, "fabric", half(inter))
    group: dict[Place, int] = {rank: rank // per_node for rank in range(ranks)}
    divisions = (("node", group),) if ranks > per_node else ()
    return Topology("mesh", ranks, graph, relays=False, divisions=divisions)


@kind("pcie")
def pcie(hardware: Hardware, ranks: int) -> Topology:
    """Links ranks with host bridges, the bridges of a node with each other and with the network.

    0 - b0.0 ---- b0.1 - 4        all messages from 0..3 to 4..7 share one link, and the reverse
    """
    graph, (intra, inter), per_node = nx.DiGraph(), hardware.links, hardware.ranks_per_node
    bridges = max(1, min(per_node, int(hardware.option("node.bridges"))))
    between = Link(0.0, hardware.option("node.bridge_bandwidth") or intra.bandwidth)
    graph.add_nodes_from(range(ranks))
    groups = dict[Place, int](), dict[Place, int]()
    for rank in range(ranks):
        node, seat = divmod(rank, per_node)
        number = seat * bridges // per_node
        bridge = f"b{node}.{number}"
        join(graph, rank, bridge, half(intra))
        for group, index in zip(groups, (node, node * bridges + number), strict=True):
            group |= {rank: index, bridge: index}
    for node, number in product(range(-(-ranks // per_node)), range(bridges)):
        if (bridge := f"b{node}.{number}") in graph:
            for other in (f"b{node}.{n}" for n in range(number)):
                join(graph, other, bridge, between)
            if ranks > per_node:
                shared = inter.bandwidth * per_node / bridges
                join(graph, bridge, "fabric", Link(inter.alpha / 2, shared, inter.share))
    names = ("node",) * (ranks > per_node) + ("bridge",) * (bridges > 1)
    named = {"node": groups[0], "bridge": groups[1]}
    divisions = tuple((name, named[name]) for name in names)
    return Topology("pcie", ranks, graph, relays=False, divisions=divisions)
