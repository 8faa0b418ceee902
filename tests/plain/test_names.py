"""Names of schedules and options: those that are shown, and all others that are accepted."""

import numpy as np

import ringloom as rl
from command_line import CommandLine
from ringloom.cli import COMMANDS, command_of
from ringloom.cli.synonyms import RENAMED
from ringloom.planner.schedules import PLAIN_NAMES
from ringloom.renamed import NAMES

SMALL = ["--ranks", "4", "--seq", "256", "--heads", "4", "--head-dim", "16"]
WORK = rl.Workload(seq=256, heads=4, head_dim=16)
GRID = np.random.default_rng(0).random((16, 16)) < 0.4
BLOCKS = "/".join("".join(map(str, row)) for row in GRID.astype(int).tolist())
CASES = (
    "--ranks 8 --seq 16k --kv-heads 2 --mask documents:4k,8k,4k --hardware a100-pcie",
    "--ranks 16 --seq 1 --kv-seq 8k --kv-heads 8 --hardware h100",
    f"--ranks 4 --seq 64k --heads 8 --mask blocks:4k:{BLOCKS} --hardware h100",
)


def test_old_names_of_the_library_still_work_and_are_not_listed() -> None:
    assert all(getattr(rl, old) is getattr(rl, new) for old, new in NAMES.items())
    assert not {*NAMES} & {*dir(rl)}
    scenario = rl.Scenario(speeds={1: 0.5})
    run = rl.simulate(rl.plan("ring", WORK, 4), "h100", scenario)
    assert (run.own_limit, run.outside) == (run.plan_lower_bound, run.bound_inapplicable_reason)
    assert scenario.factors == scenario.speed_factors == {1: 0.5}


def test_plain_names_of_schedules_give_the_same_plans() -> None:
    for name, plain in PLAIN_NAMES.items():
        assert rl.plan(plain, WORK, 4) == rl.plan(name, WORK, 4)
        assert rl.plan(f" {plain}", WORK, 4).name == name
        rows = rl.compare(WORK, 4, "h100", [f"{plain} --by-rows"]).rows
        assert [row.schedule for row in rows] == [f"{name} --by-rows"]
    assert rl.plan("sparse-gather:stages=2", WORK, 4).name == "group-cast:stages=2"


def test_commands_take_plain_names_and_schedules_shows_them(ringloom: CommandLine) -> None:
    shown = " ".join(ringloom("schedules").split())
    for name, plain in PLAIN_NAMES.items():
        assert f"{plain} = {name}" in shown
    rows = ringloom.json("schedules")["schedules"]
    assert {row["name"]: row["plain_name"] for row in rows if row["plain_name"]} == PLAIN_NAMES
    for command in (["plan"], ["simulate"], ["emit", "torch"], ["run"]):
        answers = [ringloom.json(*command, name, *SMALL) for name in ("distflash", "balanced")]
        for answer in answers:
            answer.pop("seconds", None)
        sizes = [len(str(answer)) for answer in answers]  # an emitted header names its command
        assert answers[0] == answers[1] or (command[0] == "emit" and sizes[0] > sizes[1])
    assert "distflash" in ringloom.refused("plan", "distflasch", *SMALL)


def test_old_names_of_options_still_work_and_are_not_shown(ringloom: CommandLine) -> None:
    asked = {"buffers": "plan", "launch": "1e-3", "share": "0.1"}
    old = [word for name, value in asked.items() for word in (f"--{name}", value)]
    new = [word for name, value in asked.items() for word in (f"--{RENAMED[name]}", value)]
    answers = [ringloom.json("simulate", "zigzag", *SMALL, *words) for words in (old, new, [])]
    assert answers[0] == answers[1] != answers[2]
    options = {o for name in COMMANDS for p in command_of(name).params for o in p.opts}
    assert {f"--{name}" for name in RENAMED.values()} <= options
    assert not {f"--{name}" for name in RENAMED} & options


def test_every_name_that_compare_prints_is_accepted(ringloom: CommandLine) -> None:
    endings = dict.fromkeys((" --trim blocks", " --by-rows", ":node=8", ":layout=contiguous"), 0)
    for case in CASES:
        words = case.split()
        rows = ringloom.json("compare", *words)["rows"]
        times = {row["schedule"]: row["makespan_s"] for row in rows if row["makespan_s"]}
        odd = [name for name in times if set(name) & {" ", ":"}]
        again = ringloom.json("compare", *words, "--schedules", ",".join(odd))["rows"]
        assert {row["schedule"]: row["makespan_s"] for row in again}.items() >= {
            (name, times[name]) for name in odd
        }
        for name in odd:
            assert ringloom.json("simulate", name, *words)["makespan_s"] == times[name], name
        for ending in endings:
            endings[ending] += sum(name.endswith(ending) for name in odd)
    assert all(endings.values()), endings
