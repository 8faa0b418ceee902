"""Grids of sweeps: the files, what they hold, and what no grid can say."""

import json
from pathlib import Path

import pytest

import ringloom as rl
from command_line import CommandLine
from plain.test_sweeps import FILES
from ringloom.sweeps.grid import MAX_POINTS, grid_of

NEEDED = "ranks = 2\nseq = 64\nhardware = 'h100'\nschedule = 'ring'\n"


MANY = [*range(1, 1001)]


BAD = [
    ("ranks = ", "Invalid value"),
    ("seq = 64", "missing ranks and hardware and schedule"),
    (f"{NEEDED}colour = 1", "unknown key 'colour': the keys are ranks, seq"),
    (NEEDED.replace("64", "[]"), "seq has no value"),
    (NEEDED.replace("64", "[64, '64']"), "seq lists 64 twice"),
    (NEEDED.replace("64", "6.4"), "seq: a size 6.4 is not a whole number"),
    (NEEDED.replace("64", "'long'"), "'long' is not a number of tokens"),
    (NEEDED.replace("64", "{ a = 64 }"), "seq cannot be {'a': 64}"),
    (NEEDED.replace("64", "[[64]]"), "seq: a size [64] is not a whole number"),
    (NEEDED.replace("'h100'", "[['h100']]"), "hardware"),
    (NEEDED.replace("'h100'", "3"), "hardware is a preset, a file or an rl.Hardware, not 3"),
    (NEEDED.replace("'ring'", "[3]"), "unknown schedule"),
    (NEEDED.replace("ring", "spiral"), "unknown schedule 'spiral'"),
    (NEEDED.replace("ring", "ring:colour=2"), "no parameter 'colour'"),
    (NEEDED.replace("h100", "abacus"), "unknown hardware 'abacus'"),
    (f"{NEEDED}mask = 'dropout'", "not expressible"),
    (f"{NEEDED}mask = 3", "mask cannot be 3"),
    (f"{NEEDED}dtype = 'int8'", "'int8' is not one of float64"),
    (f"{NEEDED}pass = 'sideways'", "'sideways' is not one of forward, backward, both"),
    (f"{NEEDED}sinks = 'no'", "'no' is not one of False, True"),
    (f"{NEEDED}scenario = 'slow'", "scenario cannot be 'slow'"),
    (f"{NEEDED}scenario.slow = {{ pace = 2 }}", "a scenario has no 'pace'"),
    (f"{NEEDED}scenario.slow = {{ overlap = 2 }}", "overlap must be true or false, not 2"),
    (
        f"{NEEDED}scenario.slow = {{ speeds = {{ x = 2 }} }}",
        "speeds must be a table like { 3 = 0.5",
    ),
    (
        f"{NEEDED}scenario.slow = {{ links = {{ x = 2 }} }}",
        "links must be a table like { 6-7 = 0.1",
    ),
    (f"{NEEDED}scenario.slow = {{ share = 2 }}", "a share of the chip below 1"),
    (
        NEEDED.replace("schedule = ", "schedule = 'zigzagg' #"),
        f"one of {', '.join(rl.SCHEDULES)}, ",
    ),
    (
        f"{NEEDED}batch = {MANY}\nheads = {MANY}",
        f"grid has {1000**2} points; the limit is {MAX_POINTS}",
    ),
]


@pytest.mark.parametrize(("text", "said"), BAD, ids=[said for _, said in BAD])
def test_a_grid_that_makes_no_sense_is_refused_in_one_line(
    text: str, said: str, tmp_path: Path, ringloom: CommandLine
) -> None:
    path = tmp_path / "grid.toml"
    path.write_text(text)
    assert said in ringloom.refused("sweep", str(path), "-o", str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_a_scenario_in_a_grid_is_the_scenario_in_python(tmp_path: Path) -> None:
    (tmp_path / "links.json").write_text(json.dumps({"links": [[0, 1, 1e9], [1, 2, 1e9, 1e-6]]}))
    table = {
        "speeds": {"ordinary": {}, "slow": {"speeds": {"1": 0.5}}, "each": {"speeds": [1, 0.5]}},
        "links": {"cut": {"links": {"0-s0": 0.5}}},
        "others": {"serial": {"overlap": False}, "few": {"buffers": 1, "late": True}},
        "wide": {"file": {"topology": str(tmp_path / "links.json")}},
    }
    same = {
        "speeds": {
            "ordinary": rl.Scenario(),
            "slow": rl.Scenario(speeds={1: 0.5}),
            "each": rl.Scenario(speeds=(1.0, 0.5)),
        },
        "links": {"cut": rl.Scenario(links={(0, "s0"): 0.5})},
        "others": {
            "serial": rl.Scenario(overlap=False),
            "few": rl.Scenario(buffers=1, late=True),
        },
    }
    needed = {"ranks": 2, "seq": 64, "hardware": "h100", "schedule": "ring"}
    for kind, scenarios in same.items():
        given = grid_of(needed | {"scenario": table[kind]})
        assert given.digest == grid_of(needed | {"scenario": scenarios}).digest
        assert [given.point(n)[1]["scenario"] for n in range(len(given))] == [*scenarios.values()]
    (row,) = rl.sweep(needed | {"scenario": table["wide"]}, tmp_path / "out", jobs=1).rows
    assert row["reason"] == "topology links: rank 2 of 2 ranks"
    wide = rl.sweep(needed | {"ranks": 3, "scenario": table["wide"]}, tmp_path / "3", jobs=1)
    plan = rl.plan("ring", rl.Workload(seq=64), 3)
    links = rl.simulate(plan, "h100", topology=str(tmp_path / "links.json"))
    assert wide.rows[0]["makespan_s"] == links.makespan


def test_the_command_says_what_it_wrote(tmp_path: Path, ringloom: CommandLine) -> None:
    (tmp_path / "grid.toml").write_text(NEEDED + "kv_heads = [32, 5]\n")
    command = ["sweep", str(tmp_path / "grid.toml"), "-o", str(tmp_path / "out"), "--jobs", "1"]
    said = ringloom.json(*command)
    files = {str(tmp_path / "out" / name) for name in FILES}
    assert (said["points"], said["refused"], said["computed"]) == (2, 1, 2)
    assert set(said["files"]) == files
    assert "2 points, 1 of which cannot run" in ringloom(*command)
