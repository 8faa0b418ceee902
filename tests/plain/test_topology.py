"""Topologies and ways: what is linked with what, which way messages go, what a cut does."""

import json
import math
from itertools import pairwise, product
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringloom.planner.errors import RingloomError
from ringloom.planner.planning import plan
from ringloom.planner.workload import Workload
from ringloom.simulator.hardware import hardware, presets
from ringloom.simulator.network.routes import Links, Routes, Traffic
from ringloom.simulator.network.routes import Path as Way
from ringloom.simulator.network.topology import (
    Place,
    Topology,
    graph_of_links,
    nodes,
    ring,
    switch,
    topology,
    torus,
)
from ringloom.simulator.prediction import simulate

A100 = hardware("a100-nvlink")
PLAIN = A100.changed({"intra.alpha": 1e-6, "intra.bandwidth": 1e9})
LINK = PLAIN.links[0]
shapes = st.lists(st.integers(1, 4), min_size=1, max_size=3).map(tuple)


def torus_of(shape: tuple[int, ...]) -> Topology:
    return torus(PLAIN, math.prod(shape), "x".join(map(str, shape)))


def places(routes: Routes, src: int, dst: int) -> list[Place]:
    """The places that a message passes."""
    hops = [routes.links[link] for link in routes.path(src, dst).links]
    assert all(a[1] == b[0] for a, b in pairwise(hops))
    return [hops[0][0], *(b for _, b in hops)]


@given(shapes, st.data())
def test_torus_routes_are_shortest_and_turn_axis_by_axis(
    shape: tuple[int, ...], data: st.DataObject
) -> None:
    place = torus_of(shape)
    routes, graph = Routes(place), place.graph
    src, dst = (data.draw(st.integers(0, place.ranks - 1)) for _ in range(2))
    if src == dst:
        return
    way = places(routes, src, dst)
    assert (way[0], way[-1]) == (src, dst)
    assert len(way) - 1 == nx.shortest_path_length(graph, src, dst)
    coordinates = [np.unravel_index(int(p), shape) for p in way]
    turned = [int(np.argmax(np.not_equal(a, b))) for a, b in pairwise(coordinates)]
    assert turned == sorted(turned)
    result = routes.path(src, dst)
    assert result.bandwidth == LINK.bandwidth
    assert result.alpha == pytest.approx((len(way) - 1) * LINK.alpha)


@given(shapes)
def test_a_torus_has_a_link_each_way_on_every_axis(shape: tuple[int, ...]) -> None:
    graph = torus_of(shape).graph
    degree = sum({1: 0, 2: 1}.get(length, 2) for length in shape)
    assert {d for _, d in graph.out_degree()} == {degree}
    assert all(graph.has_edge(b, a) for a, b in graph.edges)


@pytest.mark.parametrize("name", presets())
@pytest.mark.parametrize("ranks", [1, 3, 20])
def test_the_default_topology_says_what_the_constants_say(name: str, ranks: int) -> None:
    machine = hardware(name).changed({"node.ranks": 8})
    routes = Routes(nodes(machine, ranks))
    for src, dst in product(range(ranks), repeat=2):
        if src != dst:
            path = routes.path(src, dst)
            link = machine.links[src // 8 != dst // 8]
            assert (path.bandwidth, path.alpha) == (link.bandwidth, link.alpha)


def test_ranks_of_a_node_go_over_their_own_nic_and_never_through_another_rank() -> None:
    routes = Routes(nodes(A100.changed({"node.ranks": 4}), 8, "nics=2"))
    assert places(routes, 0, 5) == [0, "n0.0", "fabric", "n1.0", 5]
    assert places(routes, 3, 6) == [3, "n0.1", "fabric", "n1.1", 6]
    assert places(routes, 0, 3) == [0, "s0", 3]


def test_a_cut_nic_sends_its_ranks_to_the_other_one() -> None:
    place = nodes(A100.changed({"node.ranks": 4}), 8, "nics=2")
    routes = Routes(place, {("n0.0", "fabric"): 0.0})
    assert places(routes, 0, 5) == [0, "n0.1", "fabric", "n1.0", 5]


def test_a_cut_link_of_a_ring_sends_messages_the_long_way() -> None:
    whole = ring(PLAIN, 6)
    assert places(Routes(whole), 1, 2) == [1, 2]
    assert places(Routes(whole, {(1, 2): 0}), 1, 2) == [1, 0, 5, 4, 3, 2]
    assert places(Routes(whole, {(2, 1): 0}), 2, 1) == [2, 3, 4, 5, 0, 1]


def test_a_cut_link_of_a_torus_is_passed_by() -> None:
    routes = Routes(torus_of((4, 4)), {(0, 1): 0})
    way = places(routes, 0, 1)
    assert len(way) == 4
    assert (0, 1) not in list(pairwise(way))


@pytest.mark.parametrize(
    ("place", "links", "said"),
    [
        (switch(PLAIN, 4), {(0, 1): 0}, "link 0-1 is cut, and there is no other route from rank 0"),
        (
            switch(PLAIN, 4),
            {(2, "s0"): 0},
            "link 2-s0 is cut, and there is no other route from rank 0 to rank 2",
        ),
        (ring(PLAIN, 4), {(0, 1): 0, (2, 3): 0}, "is cut, and there is no other route from rank"),
        (ring(PLAIN, 4), {(0, 2): 0.5}, "ring has no link 0-2: 0 is linked with 1, 3"),
        (ring(PLAIN, 4), {(0, 9): 0.5}, "ring has no link 0-9: there is no 9"),
        (switch(PLAIN, 4), {(0, 0): 0.5}, "switch has no link 0-0"),
        (ring(PLAIN, 4), {(0, 1): -1.0}, "link 0-1: a factor is 0 .cut. or 1e-30 to .*, not -1"),
        (ring(PLAIN, 4), {(0, 1): 5e-324}, "a factor is 0 .cut. or 1e-30 to 1e.30, not 4.94"),
        (ring(PLAIN, 4), {(0, 1): float("nan")}, "not nan"),
    ],
)
def test_faults_that_leave_no_way_or_make_no_sense_are_told(
    place: Topology, links: Links, said: str
) -> None:
    def all_ways() -> None:
        routes = Routes(place, links)
        for src, dst in product(range(4), repeat=2):
            if src != dst:
                routes.path(src, dst)

    with pytest.raises(RingloomError, match=said):
        all_ways()


def test_a_slow_pair_behind_a_switch_is_slow_for_nobody_else() -> None:
    routes = Routes(switch(PLAIN, 4), {(0, 1): 0.1})
    bandwidths = {pair: routes.path(*pair).bandwidth for pair in [(0, 1), (1, 0), (0, 2), (2, 1)]}
    assert bandwidths == {(0, 1): 1e8, (1, 0): 1e8, (0, 2): 1e9, (2, 1): 1e9}


def test_a_slowed_link_leaves_the_topology_as_it_was() -> None:
    whole = ring(PLAIN, 4)
    assert Routes(whole, {(0, 1): 0.5}).path(0, 1).bandwidth == 5e8
    assert Routes(whole).path(0, 1).bandwidth == 1e9


def test_a_users_graph_is_routed_by_its_links(tmp_path: Path) -> None:
    file = tmp_path / "star.json"
    links = [[0, "hub", 1e9, 1e-6], [1, "hub", 2e9], [2, "hub", 3e9, 0.0], [1, 2, 5e8, 0.0]]
    file.write_text(json.dumps({"links": links}))
    routes = Routes(topology(str(file), A100, 3))
    assert places(routes, 0, 2) == [0, "hub", 2]
    assert places(routes, 1, 2) == [1, 2]
    assert routes.path(0, 1) == Way(routes.path(0, 1).links, 1e9, 1e-6, 0.0)


def test_a_networkx_graph_is_a_topology_too() -> None:
    graph = nx.path_graph(4)
    nx.set_edge_attributes(graph, 1e9, "bandwidth")
    one = plan("ring", Workload(seq=4096, heads=4), 4)
    prediction = simulate(one, A100, topology=graph)
    assert prediction.makespan > simulate(one, A100).makespan
    assert not prediction.contended


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("[]", "not of the form"),
        ('{"links": [[0, 1]]}', "not of the form"),
        ('{"links": [], "links": [[0, 1, 1e9]]}', "duplicate key 'links' in an object"),
        ('{"links": [[0, true, 1e9]]}', "a place is a rank or a name, not True"),
        ('{"links": [[0, 1, 1e9]]}', "rank 2 has no link"),
        ('{"links": [[0, 1, 1e9], [1, 2, 0]]}', "link 1-2: bandwidth = 0 is invalid"),
        ('{"links": [[0, 1, 1e9], [1, 2, "x"]]}', "link 1-2: bandwidth 'x' is not a number"),
        ('{"links": [[0, 1, 1e9, -1], [1, 2, 1]]}', "link 0-1: alpha = -1 is invalid"),
        ('{"links": [[0, 1, 1e9], [1, 2, 1], [2, 7, 1]]}', "rank 7 of 3 ranks"),
        ("{", "not of the form"),
    ],
)
def test_a_file_that_is_no_topology_is_refused_in_one_line(
    content: str, said: str, tmp_path: Path
) -> None:
    file = tmp_path / "bad.json"
    file.write_text(content)
    with pytest.raises(RingloomError, match=said) as caught:
        topology(str(file), A100, 3)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("written", ["star", "torus:", "torus:axb", "torus:0x4", "nodes:nics=0"])
def test_an_unknown_topology_is_refused(written: str) -> None:
    with pytest.raises(RingloomError, match=r"(topology|torus)"):
        topology(written, A100, 4)


@pytest.mark.parametrize(
    ("written", "ranks", "links"),
    [("switch", 4, 8), ("nodes", 16, 64), ("ring", 4, 8), ("torus:2x2x2", 8, 24)],
)
def test_topologies_are_written_as_they_are_named(written: str, ranks: int, links: int) -> None:
    network = topology(written, A100, ranks)
    assert (network.name, network.graph.number_of_edges()) == (written, links)


@given(shapes, st.sampled_from(["ring", "allgather", "ulysses", "usp"]))
def test_a_link_is_shared_only_if_two_senders_and_two_receivers_use_it(
    shape: tuple[int, ...], name: str
) -> None:
    place = torus_of(shape)
    one = plan(name, Workload(seq=64, heads=4, head_dim=2), place.ranks)
    traffic = Traffic(one, Routes(place))
    pairs = {(int(s), int(d)) for _, m in one.moves() for s, d in zip(m.src, m.dst, strict=True)}
    assert len(traffic.paths) == len(pairs)
    users = {link: set[tuple[Place, Place]]() for link in traffic.routes.links}
    for pair in pairs:
        way = places(traffic.routes, *pair)
        for hop in pairwise(way):
            users[hop].add(((way[0], way[1]), (way[-2], way[-1])))
    shared = {
        link
        for link, ends in users.items()
        if min(len({out for out, _ in ends}), len({into for _, into in ends})) > 1
    }
    assert {traffic.routes.links[link] for link in traffic.shared} == shared


def test_links_of_a_given_topology_go_both_ways() -> None:
    pair = Topology("pair", 2, graph_of_links([(0, 1, 1e9, 0.0)]))
    assert sorted(pair.graph.edges) == [(0, 1), (1, 0)]
