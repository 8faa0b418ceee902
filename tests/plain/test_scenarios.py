"""Scenarios: their files, placements, launches, and sweeps over one of their values."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ringloom as rl
from command_line import CommandLine
from plain.test_simulator_reference import machines, plans
from ringloom.planner.ir import Plan
from ringloom.planner.planning import plan
from ringloom.planner.plans import Plans
from ringloom.planner.workload import Workload
from ringloom.simulator.hardware import Hardware, hardware
from ringloom.simulator.prediction import seconds_of, simulate
from ringloom.simulator.scenario import Scenario, scenario_file, scenario_of
from ringloom.simulator.what_if import Crossing, curves

ENDS = (0, 1), (1, 0)
H100 = hardware("h100")
WORK = Workload(seq=2**16, heads=8)
TOML = """
overlap = false
speeds = { 3 = 0.5 }
links = { "6-7" = 0.1, "0-s0" = "cut" }
topology = "switch"
buffers = 2
placement = [1, 0]
launch = 1e-5
"""
SCENARIO = Scenario(
    overlap=False,
    speeds={3: 0.5},
    links={(6, 7): 0.1, (0, "s0"): 0.0},
    topology="switch",
    buffers=2,
    placement=[1, 0],
    launch=1e-5,
)


def test_a_file_holds_the_fields_of_a_scenario_in_toml_or_json(tmp_path: Path) -> None:
    file = tmp_path / "what_if.toml"
    file.write_text(TOML)
    assert scenario_file(file) == SCENARIO
    other = tmp_path / "what_if.json"
    links = {"6-7": 0.1, "0-s0": "cut"}
    fields = {"overlap": False, "speeds": {"3": 0.5}, "links": links, "topology": "switch"}
    other.write_text(json.dumps(fields | {"buffers": 2, "placement": [1, 0], "launch": 1e-5}))
    assert scenario_file(other) == SCENARIO


@pytest.mark.parametrize(
    ("values", "form"),
    [
        ({"links": {"6-7": 0.1}}, "links must be factors by two places, as {(6, 7): 0.1}, not {'6"),
        ({"links": [0.1]}, "links must be factors by two places"),
        ({"speeds": "3=0.5"}, "speeds must be numbers by rank, as {3: 0.5}, or one for each, not"),
        ({"speeds": 0.5}, "speeds must be numbers by rank"),
    ],
)
def test_values_as_on_the_command_line_are_told_their_form_in_python(
    values: dict[str, Any], form: str
) -> None:
    with pytest.raises(rl.RingloomError, match=re.escape(form)):
        Scenario(**values)


def test_a_table_stands_for_a_scenario_in_python() -> None:
    one, table = plan("ring", WORK, 8), {"overlap": False, "links": {"6-7": 0.1}}
    scenario = Scenario(overlap=False, links={(6, 7): 0.1})
    assert simulate(one, H100, table).makespan == simulate(one, H100, scenario).makespan
    assert rl.compare(WORK, 8, H100, ["ring"], scenario=table).scenario == scenario
    with pytest.raises(rl.RingloomError, match="a scenario has no 'overlaps'"):
        simulate(one, H100, {"overlaps": False})


def test_a_file_of_links_is_told_by_its_name(tmp_path: Path) -> None:
    """Titles and errors told the graph of a scenario's file as networkx prints it, or "given"."""
    (tmp_path / "mine.json").write_text('{"links": [[0, "s", 1e9], [1, "s", 1e9]]}')
    for one in (
        scenario_of({"topology": str(tmp_path / "mine.json")}),
        Scenario(topology=str(tmp_path / "mine.json")),
    ):
        with pytest.raises(rl.RingloomError, match=r"topology mine: rank 2 has no link"):
            simulate(plan("ring", WORK, 3), H100, one)
    assert scenario_of({"topology": str(tmp_path / "mine.json")}).describe() == ["topology mine"]


def test_a_cut_link_is_told_as_it_is_asked_for() -> None:
    assert scenario_of({"links": {"6-7": "cut", "0-1": 0.1}}).describe() == [
        "links 6-7=cut, 0-1=0.1"
    ]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[3]", "a scenario is an object of names and values, not \\[3\\]"),
        ('{"share": 0.1, "share": 0.2}', "duplicate key 'share' in an object"),
        ("overlaps = false", "a scenario has no 'overlaps': its values are overlap, speeds"),
        ("overlap = 1", "overlap must be true or false, not 1"),
        ("share = 2.0", "a share of the chip below 1, not 2"),
        ('links = { "6" = 0.1 }', "links must be a table like { 6-7 = 0.1 }, not"),
        ("launch = -1.0", "a launch takes 0 seconds or more, not -1"),
        ("buffers = 'all'", "or plan, not 'all'"),
        ("placement = '0,1'", r"placement must be a list like \[0, 2, 1, 3\], not '0,1'"),
        ("overlap =", "scenario file"),
        ("speeds = { a = 1 }", "speeds must be a table like { 3 = 0.5"),
    ],
)
def test_a_wrong_file_is_refused_in_one_line(tmp_path: Path, text: str, why: str) -> None:
    file = tmp_path / ("wrong.json" if text[0] in "[{" else "wrong.toml")
    file.write_text(text)
    with pytest.raises(rl.RingloomError, match=why) as error:
        scenario_file(file)
    assert "\n" not in str(error.value)


@given(plans(), machines, st.data())
def test_a_placement_that_keeps_nodes_together_changes_nothing(
    one: Plan, machine: Hardware, data: st.DataObject
) -> None:
    """Ranks of a node may change seats, and a placement may be the usual one."""
    size, seats = machine.ranks_per_node, list(range(one.ranks))
    placed = list[int]()
    for first in range(0, one.ranks, size):
        placed += data.draw(st.permutations(seats[first : first + size]))
    usual, moved = (simulate(one, machine, placement=p) for p in (None, placed))
    assert moved.makespan == pytest.approx(usual.makespan)
    assert moved.bound.seconds == pytest.approx(usual.bound.seconds)


def test_ranks_spread_over_nodes_take_the_slow_links() -> None:
    one, machine = plan("striped", WORK, 8), H100.changed({"node.ranks": 4, "inter.bandwidth": 1e9})
    apart = [0, 4, 1, 5, 2, 6, 3, 7]
    ring = simulate(one, machine).busiest_link
    spread = simulate(one, machine, placement=apart)
    assert spread.busiest_link == pytest.approx(ring)  # a hop each time, to the other node
    near = plan("usp:ulysses=4:ring=2", WORK, 8)  # all-to-all inside a node
    assert simulate(near, machine, placement=apart).makespan > simulate(near, machine).makespan
    torus = simulate(one, H100, topology="torus:8", placement=[7, 6, 5, 4, 3, 2, 1, 0])
    assert torus.makespan == pytest.approx(simulate(one, H100, topology="torus:8").makespan)
    with pytest.raises(rl.RingloomError, match="0 is named twice"):
        simulate(one, H100, placement=[0] * 8)


def test_rank_r_stands_at_place_number_r_of_a_placement() -> None:
    usual = rl.topology("nodes", H100.changed({"node.ranks": 2}), 4)
    placed = usual.placed([1, 2, 0, 3])
    assert [set(placed.graph.successors(rank)) for rank in range(4)] == [
        *({"s0", "fabric"}, {"s1", "fabric"}, {"s0", "fabric"}, {"s1", "fabric"}),
    ]


def test_a_link_is_slowed_once_whichever_end_it_is_named_from() -> None:
    """A sweep over a link that is slowed already takes the place of what it was slowed by."""
    one = plan("ring", Workload(seq=2**16, heads=8), 4)
    from_either = [simulate(one, H100, links={ends: 0.1}, topology="ring") for ends in ENDS]
    assert from_either[0].makespan == from_either[1].makespan
    with pytest.raises(rl.RingloomError, match="link 0-1 is named twice, once from either end"):
        Scenario(links=dict.fromkeys(ENDS, 0.1))
    slow = Scenario(links={ENDS[0]: 0.5}, topology="ring")
    for key in ("link:0-1", "link:1-0"):
        swept = curves({"ring": Plans.of(one)}, H100, slow, key, 0.1, 1, points=2)
        assert swept.seconds["ring"][0] == from_either[0].makespan


def test_a_launch_takes_the_place_of_the_hardwares() -> None:
    one = plan("ring", Workload(seq=2**10, heads=1), 8)
    slow, fast = (simulate(one, H100, launch=seconds) for seconds in (1e-3, 0.0))
    assert slow.makespan - fast.makespan == pytest.approx(8e-3, rel=0.01)


def test_a_sweep_finds_where_one_schedule_overtakes_another() -> None:
    work = Workload(seq=2**16, heads=16, kv_heads=1)  # little to send in a ring, merges to do
    both = {name: Plans.of(plan(name, work, 8)) for name in ("zigzag", "ulysses")}
    curve = curves(both, H100, Scenario(), "intra.bandwidth", 1e8, 1e12)
    assert curve.crossings
    for crossing in curve.crossings:
        for factor, fastest in ((0.98, crossing.below), (1.02, crossing.above)):
            machine = H100.changed({"intra.bandwidth": factor * crossing.value})
            times = {name: simulate(one, machine).makespan for name, one in both.items()}
            assert min(times, key=times.__getitem__) == fastest
    assert curve.sentences[-1].startswith(f"{curve.crossings[-1].above} is the fastest above")
    pair = replace(curve, key="x", crossings=(Crossing(2, "a", "b"), Crossing(3, "b", "a")))
    assert pair.sentences == [
        *("a is the fastest below x = 2.", "b is the fastest from x = 2 to 3."),
        "a is the fastest above x = 3.",
    ]
    for key in ("speed:0", "link:0-s0"):
        slow = curves(both, H100, Scenario(), key, 0.01, 1.0, points=3)
        assert slow.seconds["zigzag"][0] > slow.seconds["zigzag"][-1]
    given = Scenario(launch=0.1, share=0.1)
    for key, own in (("attention.backward_launch", "launch"), ("intra.sm_share", "share")):
        with pytest.raises(rl.RingloomError, match=f"{own} overrides {key}: sweep {own}"):
            curves(both, H100, given, key, 0.01, 0.1)
    for key in ("colour", "link:3", "link:0-1-2"):
        with pytest.raises(rl.RingloomError, match=f"no value '{key}' to sweep"):
            curves(both, H100, Scenario(), key, 1, 2)


@pytest.mark.parametrize(
    ("name", "scenario"),
    [("striped:grain=32", Scenario(overlap=False)), ("zigzag", Scenario(topology="torus:2x2"))],
)
def test_what_is_timed_alone_is_what_is_predicted(name: str, scenario: Scenario) -> None:
    """Kernels that cut otherwise, or whose calls cost otherwise, are noticed."""
    pair = plan(name, Workload(seq=2**14, heads=8, kv_heads=2), 4, pass_="both")
    skips = {f"attention.{p}skip_{side}": 64.0 for p in ("", "backward_") for side in ("q", "kv")}
    usual = H100.changed(skips)
    changes = {"attention.causal": 1.3, "attention.mask": 1e-9, "attention.tile_q": 64.0}
    changes |= {"attention.skip_q": 256.0, "intra.bandwidth": 1e9}
    for key, value in changes.items():
        for machine in (usual, usual.changed({key: value})):
            assert seconds_of(pair, machine, scenario) == simulate(pair, machine, scenario).makespan


def test_a_schedule_that_is_the_fastest_for_a_moment_has_two_crossings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def seconds_of(one: Plans, machine: Hardware, _: Scenario) -> float:
        at = machine["intra.bandwidth"] / 1e10
        return {"ring": 2 - at, "zigzag": 0.99, "striped": at}[one.name]

    monkeypatch.setattr("ringloom.simulator.what_if.seconds_of", seconds_of)
    plans = {name: Plans.of(plan(name, WORK, 2)) for name in ("ring", "zigzag", "striped")}
    curve = curves(plans, H100, Scenario(), "intra.bandwidth", 1e9, 1e11, points=2)
    ways = [(crossing.below, crossing.above) for crossing in curve.crossings]
    assert ways == [("striped", "zigzag"), ("zigzag", "ring")]
    assert [c.value for c in curve.crossings] == pytest.approx([0.99e10, 1.01e10], 1e-5)


def test_commands_take_a_scenario_file_and_single_values_over_it(
    tmp_path: Path, ringloom: CommandLine
) -> None:
    file = tmp_path / "slow.toml"
    file.write_text("speeds = { 0 = 0.5 }\ntopology = 'ring'\n")
    work = ["--ranks", "4", "--seq", "16k", "--heads", "4", "--hardware", "h100", "--json"]
    slow = ["--scenario", str(file)]

    def time(*command: str) -> float:
        document = json.loads(ringloom(*command, *work))
        rows = document.get("rows", [document])
        return float(next(r["makespan_s"] for r in rows if r["schedule"] == "zigzag"))

    one = plan("zigzag", Workload(seq=2**14, heads=4), 4)
    expected = simulate(one, H100, speeds={0: 0.5}, topology="ring").makespan
    assert time("simulate", "zigzag", *slow) == expected
    assert time("compare", "--schedules", "zigzag", *slow) == expected
    switched = simulate(one, H100, speeds={0: 0.5}, topology="switch").makespan
    assert time("simulate", "zigzag", *slow, "--topology", "switch") == switched
    links, seats = {(0, 1): 0.001}, [1, 0, 2, 3]
    placed = simulate(
        one, H100, speeds={0: 0.5}, topology="ring", links=links, placement=seats
    ).makespan
    narrow = ["--slow-link", "0-1=0.001"]
    assert time("simulate", "zigzag", *slow, *narrow) < placed
    for command in (["simulate", "zigzag"], ["compare", "--schedules", "zigzag"]):
        assert time(*command, *slow, *narrow, "--placement", "1,0,2,3") == placed
    for option in (["--straggler", "1=0.5"], ["--slow-link", "0-1=0.5"]):
        file.write_text("overlap = false\nspeeds = { 0 = 0.5 }\nlinks = { '1-2' = 0.5 }\n")
        said = ringloom.refused("simulate", "zigzag", *slow, *option, *work)
        assert "in the file or as options, not both" in said
    beside = simulate(one, H100, speeds={0: 0.5}, links={(1, 2): 0.5}).makespan
    assert time("simulate", "zigzag", *slow, "--overlap") == beside
