"""Pods of TPUs: ranks along a walk over a torus, blocks passed on from neighbour to neighbour."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringloom.planner.analysis.messages import message_bytes
from ringloom.planner.errors import PlanError
from ringloom.planner.ir import Plan
from ringloom.planner.masks import Full
from ringloom.planner.planning import plan
from ringloom.planner.verify import verify
from ringloom.planner.workload import Workload
from ringloom.simulator.hardware import Hardware, hardware
from ringloom.simulator.network.relays import relayed
from ringloom.simulator.network.topology import pod
from ringloom.simulator.prediction import simulate

V4, V5E = hardware("tpu-v4"), hardware("tpu-v5e")
GATHERS = ("allgather", "broadcast", "mesh2d", "llama3", "group-cast")


def gathered(name: str, ranks: int, pass_: str = "forward") -> Plan:
    work = Workload(seq=64 * ranks, heads=16, mask=Full())
    return plan(name, work, ranks, pass_=pass_)  # type: ignore[arg-type]


@pytest.mark.parametrize("machine", [V4, V5E], ids=["v4", "v5e"])
@pytest.mark.parametrize("ranks", [2, 4, 8, 12, 16, 32, 64, 256])
def test_a_ring_goes_from_neighbour_to_neighbour_and_closes(machine: Hardware, ranks: int) -> None:
    place = pod(machine, ranks)
    assert place.route is not None
    hops = [len(place.route(r, (r + 1) % ranks, False)) - 1 for r in range(ranks)]
    assert hops == [1] * ranks
    assert all(place.graph.has_edge(r, (r + 1) % ranks) for r in range(ranks))


def test_a_pod_is_as_even_as_can_be_and_axes_close_where_they_do() -> None:
    assert pod(V4, 64).name == "torus:4x4x4"
    assert pod(V4, 16).name == "torus:4x2x2"
    assert pod(V4, 64).graph.number_of_edges() == 64 * 6
    assert pod(V5E, 16).graph.number_of_edges() == 2 * 2 * 4 * 3  # lines of four do not close
    assert pod(V5E, 256).graph.number_of_edges() == 256 * 4
    assert pod(hardware("h100"), 16).name == "nodes"


@given(st.sampled_from(GATHERS), st.integers(2, 12), st.sampled_from(["forward", "backward"]))
def test_a_plan_with_relays_is_a_plan_of_neighbours(name: str, ranks: int, pass_: str) -> None:
    try:
        flat = gathered(name, ranks, pass_)
    except PlanError:
        return
    place = pod(V4, ranks)
    passed = verify(relayed(flat, place))
    assert sum(len(m) for _, m in passed.moves()) == sum(len(m) for _, m in flat.moves())
    if name == "allgather":
        for _, move in passed.moves():
            ends = zip(move.src.tolist(), move.dst.tolist(), strict=True)
            assert all(place.graph.has_edge(*end) for end in ends)


def test_a_gather_uses_the_links_of_all_axes_alike() -> None:
    """A block crosses 63 links of a 4 x 4 x 4 torus, and 6 lead into each rank."""
    one, place = gathered("allgather", 64), pod(V4, 64)
    crossed = dict.fromkeys(place.graph.edges, 0)
    passed = relayed(one, place)
    for number, move in passed.moves():
        size = message_bytes(passed, number, move).tolist()
        for src, dst, bytes_ in zip(move.src.tolist(), move.dst.tolist(), size, strict=True):
            crossed[src, dst] += bytes_
    own = one.block_bytes("KV").sum() / 64
    assert sum(crossed.values()) == pytest.approx(63 * 64 * own)
    assert max(crossed.values()) < 2 * np.mean(list(crossed.values()))


def test_where_nothing_is_sent_to_many_a_plan_stays_as_it_is() -> None:
    for name, machine in (("zigzag", V4), ("allgather", hardware("h100"))):
        one = gathered(name, 8)
        assert relayed(one, pod(machine, 8)) is one


def test_a_tpu_has_its_torus_unless_told_otherwise() -> None:
    work = Workload(seq=2**14, heads=8, mask=Full())
    one = plan("allgather", work, 16)
    usual, switch = simulate(one, V4), simulate(one, V4, topology="switch")
    assert usual.makespan < switch.makespan  # six links into a chip instead of one
    told = simulate(one, V4, topology="pod")
    assert told.makespan == pytest.approx(usual.makespan)
    one = plan("zigzag", work, 16)
    assert simulate(one, V4, engine="events").makespan == pytest.approx(simulate(one, V4).makespan)


@given(st.sampled_from([*GATHERS, "ring", "ulysses", "usp"]), st.sampled_from([4, 8, 16]))
def test_no_plan_on_a_pod_is_below_its_bound(name: str, ranks: int) -> None:
    try:
        one = gathered(name, ranks)
    except PlanError:
        return
    for machine in (V4, V5E):
        result = simulate(one, machine.changed({"intra.bandwidth": 1e8}))
        assert result.bound_ratio is None or result.bound_ratio > 1 - 1e-9
        assert math.isfinite(result.makespan)


@pytest.mark.parametrize("name", GATHERS[:2])
@pytest.mark.parametrize("machine", [V4, hardware("tpu-v5p")], ids=["v4", "v5p"])
def test_naming_a_link_changes_its_bandwidth_and_nothing_else(name: str, machine: Hardware) -> None:
    """Blocks are passed on along the same trees; without them, a gather took a third longer."""
    one = plan(name, Workload(seq=2**16, heads=64), 8)
    usual = simulate(one, machine).makespan
    times = [simulate(one, machine, links={(0, 1): f}).makespan for f in (1.0, 0.999, 0.5, 0.1)]
    assert times[0] == usual
    assert times[1] == pytest.approx(usual, rel=0.002)
    assert times == sorted(times)
    assert times[-1] > 1.05 * usual


def test_trees_go_round_a_link_that_is_cut() -> None:
    one = plan("allgather", Workload(seq=2**16, heads=64), 8)
    assert simulate(one, V4, links={(0, 1): 0.0}).makespan > simulate(one, V4).makespan
