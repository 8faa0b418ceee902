"""Nodes whose chips are joined otherwise than by one switch: meshes, and trees of PCIe links."""

import pytest

from ringloom.planner.masks import Full
from ringloom.planner.planning import plan
from ringloom.planner.workload import Workload
from ringloom.simulator.hardware import hardware
from ringloom.simulator.network.routes import Routes
from ringloom.simulator.network.topology import pod
from ringloom.simulator.prediction import simulate

MI300X, RTX = hardware("mi300x"), hardware("rtx-4090")
WORK = Workload(seq=2**15, heads=32)


def test_a_ring_uses_one_link_of_seven_of_a_mesh_and_an_exchange_uses_all() -> None:
    switched = {"intra.bandwidth": 7 * MI300X["intra.bandwidth"], "intra.sm_share": 0}
    mesh = MI300X.changed({"intra.sm_share": 0})
    ring, ulysses = (plan(name, WORK, 8) for name in ("zigzag", "ulysses"))
    one_port = simulate(ring, mesh.changed(switched), topology="switch").makespan
    assert simulate(ring, mesh).makespan > 2 * one_port
    assert simulate(ulysses, mesh).makespan < 1.2 * one_port
    gathered = plan("allgather", WORK, 8)
    assert simulate(gathered, mesh).makespan < 0.7 * simulate(ring, mesh).makespan


def test_each_rank_of_a_mesh_reaches_the_others_over_a_link_of_its_own() -> None:
    place = pod(MI300X, 8)
    assert place.graph.number_of_edges() == 8 * 7
    routes = Routes(place)
    assert len({routes.path(0, other).links for other in range(1, 8)}) == 7
    two = pod(MI300X, 16)
    path = Routes(two).path(0, 9)
    assert path.bandwidth == MI300X["inter.bandwidth"]
    assert path.alpha == pytest.approx(MI300X["inter.alpha"])
    assert [name for name, _ in two.divisions] == ["node"]


def test_cards_of_two_host_bridges_share_the_link_between_them() -> None:
    routes = Routes(pod(RTX, 8))
    near, far, other = routes.path(0, 3), routes.path(0, 4), routes.path(1, 5)
    assert near.bandwidth == RTX["intra.bandwidth"]
    assert {*far.links} & {*other.links}
    assert not {*near.links} & {*routes.path(1, 2).links}
    work = Workload(seq=2**13, heads=32, mask=Full())
    ulysses, ring = (plan(name, work, 8) for name in ("ulysses", "ring"))
    wide = RTX.changed({"node.bridge_bandwidth": 1e12})
    assert simulate(ulysses, RTX).makespan > 1.1 * simulate(ulysses, wide).makespan
    assert simulate(ring, RTX).makespan == pytest.approx(simulate(ring, wide).makespan, rel=0.01)


def test_ranks_of_two_servers_meet_over_the_network() -> None:
    routes = Routes(pod(RTX, 16))
    path = routes.path(0, 8)
    assert [routes.links[n] for n in path.links] == [
        *((0, "b0.0"), ("b0.0", "fabric"), ("fabric", "b1.0"), ("b1.0", 8))
    ]
    assert routes.path(0, 4).alpha == pytest.approx(RTX["intra.alpha"])


@pytest.mark.parametrize("name", ["mi300x", "rtx-4090", "trainium2", "gb200-nvl72"])
def test_no_plan_is_below_the_bound_of_its_machine(name: str) -> None:
    for schedule in ("ring", "zigzag", "allgather", "ulysses"):
        for pass_ in ("forward", "backward"):
            one = plan(schedule, Workload(seq=2**12, heads=32), 16, pass_=pass_)  # type: ignore[arg-type]
            result = simulate(one, hardware(name).changed({"intra.bandwidth": 1e9}))
            assert result.bound_ratio is None or result.bound_ratio > 1 - 1e-9
