"""Ranks on some chips of a machine, and tensor-parallel groups side by side."""

from dataclasses import replace

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ringloom as rl
from command_line import CommandLine
from ringloom.simulator.network.routes import Routes
from ringloom.simulator.scenario import Scenario

H100 = rl.hardware("h100")
WORK = rl.Workload(seq=2048, heads=8, kv_heads=4, head_dim=64)
TIMES = "makespan_s", "exposed_comm_s", "bound_s", "own_limit_s"
schedules = st.sampled_from(["ring", "zigzag", "allgather", "balanced", "ulysses"])
passes = st.sampled_from(["forward", "backward"])


def times(plan: rl.Plan, machine: rl.Hardware, **scenario: object) -> list[object]:
    row = rl.simulate(plan, machine, **scenario).as_row()
    return [pytest.approx(row[name]) for name in TIMES]


@given(schedules, passes, st.sampled_from([(0, 8, 16, 24), (3, 12, 17, 30), (24, 0, 8, 16)]))
def test_a_rank_on_each_node_is_a_machine_with_nodes_of_one(
    name: str, pass_: str, places: tuple[int, ...]
) -> None:
    plan = rl.plan(name, WORK, 4, pass_=pass_)
    alone = H100.changed({"node.ranks": 1})
    assert times(plan, H100, placement=places) == times(plan, alone)
    assert rl.simulate(plan, H100, placement=places).ranks_per_node == 1


@given(schedules, passes, st.sampled_from([(0, 1, 8, 9), (6, 4, 10, 11), (8, 15, 0, 7)]))
def test_two_ranks_on_each_node_are_a_machine_with_nodes_of_two(
    name: str, pass_: str, places: tuple[int, ...]
) -> None:
    plan = rl.plan(name, WORK, 4, pass_=pass_)
    assert times(plan, H100, placement=places) == times(plan, H100.changed({"node.ranks": 2}))


@given(schedules, passes, st.sampled_from([1, 2, 4, 8]))
def test_a_tensor_parallel_group_finds_nodes_with_fewer_ranks(
    name: str, pass_: str, width: int
) -> None:
    work = replace(WORK, heads=32, kv_heads=32).split(width)
    plan = rl.plan(name, work, 4, pass_=pass_)
    group = H100.changed({"node.ranks": 8 // width})
    assert times(plan, H100, tensor_parallel=width) == times(plan, group)
    starts = [rank * width for rank in range(4)]
    assert times(plan, H100, tensor_parallel=width, placement=starts) == times(plan, group)
    assert times(plan, H100, tensor_parallel=width, topology="nodes") == times(plan, group)


@given(schedules)
def test_chips_without_a_rank_pass_messages_on_in_a_torus_only(name: str) -> None:
    """Every second place of a ring of eight is a ring of four whose links are twice as long."""
    plan = rl.plan(name, WORK, 4, pass_="forward")
    link = H100.links[0]
    near = H100.changed({"intra.alpha": 2 * link.alpha})
    every_second = Scenario(topology="torus:8", placement=[0, 2, 4, 6])
    assert rl.simulate(plan, H100, every_second).makespan == pytest.approx(
        rl.simulate(plan, near, topology="torus:4").makespan
    )
    switched = Scenario(placement=[0, 2, 4, 6]).routes(H100, 4)
    assert {*switched.topology.graph} == {0, 1, 2, 3, "s0"}


def test_groups_share_the_links_that_they_all_take() -> None:
    """Two groups alternate on a ring of eight, so that each link carries messages of both."""
    both = Scenario(topology="torus:8", tensor_parallel=2).routes(H100, 4)
    alone = Scenario(topology="torus:8", placement=[0, 2, 4, 6]).routes(H100, 4)
    for src, dst in ((0, 1), (3, 0), (0, 2)):
        assert both.path(src, dst).bandwidth == alone.path(src, dst).bandwidth / 2
    nics = Scenario(topology="nodes:nics=2", tensor_parallel=4).routes(H100, 4)
    assert nics.path(0, 1).bandwidth == H100.links[0].bandwidth
    assert nics.path(0, 2).bandwidth == H100.links[1].bandwidth / 4


def test_a_column_of_a_torus_is_not_shared_with_its_neighbours() -> None:
    routes = Scenario(topology="torus:4x4", tensor_parallel=4).routes(H100, 4)
    assert routes.path(0, 1).bandwidth == H100.links[0].bandwidth


def test_graphs_may_have_more_chips_than_a_plan_has_ranks() -> None:
    graph = nx.Graph()
    graph.add_edges_from([(0, 1), (1, 2), (2, 3)], bandwidth=1e9)
    routes = Scenario(topology=graph, placement=[0, 3]).routes(H100, 2)
    assert [routes.links[link] for link in routes.path(0, 1).links] == [
        (0, "p1"),
        ("p1", "p2"),
        ("p2", 1),
    ]
    with pytest.raises(rl.RingloomError, match="choose places with a placement"):
        Routes(rl.topology(rl.topology(graph, H100, 4), H100, 2))


@pytest.mark.parametrize(
    ("scenario", "why"),
    [
        (Scenario(placement=[0, 1]), "each of the 4 ranks a place: 4 numbers, not 2"),
        (Scenario(placement=[0, 1, 2, 2]), "2 is named twice"),
        (Scenario(placement=[0, 1, 2, -1]), "a place is 0 to 65535, not -1"),
        (Scenario(placement=[0, 1, 2, 1 << 20]), "not 1048576"),
        (Scenario(placement=[0, 1, 2, 5], topology="torus:4"), "places 0 to 3, not 5"),
        (Scenario(placement=[0, 1, 2, 5], topology="ring"), "--topology torus:6 for a ring of 6"),
        (Scenario(placement=[0, 1, 4, 6], tensor_parallel=2), "places 0 and 1 overlap"),
        (Scenario(tensor_parallel=3), "two nodes of 8; use 1, 2, 4, 8"),
        (Scenario(tensor_parallel=16), "two nodes of 8"),
    ],
)
def test_places_that_do_not_exist_are_refused(scenario: Scenario, why: str) -> None:
    with pytest.raises(rl.RingloomError, match=why):
        rl.simulate(rl.plan("ring", WORK, 4), H100, scenario)


@pytest.mark.parametrize(("width", "heads"), [(1, (8, 2)), (2, (4, 1)), (4, (2, 1)), (8, (1, 1))])
def test_tensor_parallel_ranks_share_heads(width: int, heads: tuple[int, int]) -> None:
    one = replace(WORK, kv_heads=2).split(width)
    assert (one.heads, one.kv_heads) == heads


def test_heads_that_do_not_divide_are_refused_with_those_that_do() -> None:
    with pytest.raises(rl.PlanError, match="24 heads and 4 KV heads: use 1, 2, 4, 8, 12, 24"):
        replace(WORK, heads=24).split(3)
    with pytest.raises(rl.PlanError, match="a positive integer, not 0"):
        WORK.split(0)


def test_the_command_line_divides_heads_and_nodes(ringloom: CommandLine) -> None:
    case = ["--ranks", "4", "--seq", "4096", "--hardware", "h100", "--heads", "32"]
    case += ["--kv-heads", "8", "--tensor-parallel", "4", "--schedules", "zigzag,allgather"]
    split = ringloom.json("compare", *case)
    rows = rl.compare(
        rl.Workload(seq=4096, heads=8, kv_heads=2),
        4,
        H100.changed({"node.ranks": 2}),
        ["zigzag", "allgather"],
    ).as_rows()
    assert split["rows"][0]["schedule"] == rows[0]["schedule"]
    for name in TIMES:
        assert split["rows"][0][name] == pytest.approx(rows[0][name])
    assert {row["schedule"] for row in split["rows"]} >= {"allgather:node=2"}
