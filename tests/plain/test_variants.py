"""Settings that compare tries: accepted as typed, pruned soundly, the best of each listed."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import ringloom as rl
from command_line import CommandLine
from ringloom.planner.passes.edges import shares_keys
from ringloom.planner.plans import Passes
from ringloom.planner.schedules import comparable_schedules, further_schedules
from ringloom.planner.schedules.variants import FAMILIES
from ringloom.simulator.hardware import hardware
from ringloom.simulator.prediction import kernel_seconds
from ringloom.trials import recipe_of, schedule_names

H100 = hardware("h100")
WORK = rl.Workload(seq=2**14, heads=16, kv_heads=4, mask="window:2048")
MASKS = "full", "causal", "window:2048", "causal & documents:4000,4384,8000"


def family(name: str) -> str:
    return recipe_of(name).family


@pytest.mark.parametrize("mask", MASKS)
def test_further_settings_are_accepted_as_they_are_written(mask: str) -> None:
    work = rl.Workload(seq=2**14, heads=16, kv_heads=4, mask=mask)
    for ranks, node in ((4, 8), (16, 8)):
        names = further_schedules(work, ranks, node)
        assert len({*names}) == len(names) > len(FAMILIES)
        assert {*names}.isdisjoint(comparable_schedules(work, ranks, node))
        assert {family(name) for name in names} <= {*FAMILIES}
        every = schedule_names(None, work, ranks, H100)
        assert every[: -len(names)] == schedule_names(None, work, ranks, H100, variants=False)
        for name in every if ranks == 4 else []:
            assert rl.plan(name, work, ranks).name == name


def test_layouts_are_tried_where_the_mask_tells_them_apart() -> None:
    def layouts(mask: str) -> set[str]:
        names = further_schedules(rl.Workload(seq=2**14, heads=16, kv_heads=4, mask=mask), 4, 8)
        return {part for name in names for part in name.split(":") if "layout" in part}

    assert layouts("full") == layouts("causal") == {"layout=zigzag"}
    assert layouts("window:64") == {f"layout={n}" for n in ("zigzag", "contiguous", "even-work")}
    assert "layout=per-document" in layouts("causal & documents:4000,4384,8000")
    short = ",".join(["128"] * 128)  # pieces of 16 tokens are far shorter than a kernel's tile
    assert "layout=per-document" not in layouts(f"causal & documents:{short}")


@pytest.mark.parametrize("mask", MASKS[1:])
def test_no_setting_that_was_tried_or_pruned_is_faster_than_the_first_row(mask: str) -> None:
    work = rl.Workload(seq=2**14, heads=16, kv_heads=4, mask=mask)
    every = rl.compare(work, 4, H100)
    times = dict[str, float]()
    for name in schedule_names(None, work, 4, H100):
        times[name] = rl.simulate(rl.plan(name, work, 4), H100).makespan
    best = every.rows[0].makespan_s
    assert best <= min(times.values())
    assert every.tried == len(further_schedules(work, 4, 8)) > every.pruned
    kernels = [
        kernel_seconds(rl.plan(name, work, 4), H100, rl.Scenario())
        for name in further_schedules(work, 4, 8)
    ]
    assert every.pruned <= sum(one > best for one in kernels)


def test_the_best_of_each_schedule_is_listed_once() -> None:
    rows = rl.compare(WORK, 4, H100).rows
    shown = Counter(family(row.schedule) for row in rows if " --" not in row.schedule)
    assert set(shown.values()) == {1}
    assert "ring" in shown
    usual = rl.compare(WORK, 4, H100, variants=False).rows
    assert rows[0].makespan_s < usual[0].makespan_s  # a contiguous all-gather, for one
    for row in usual:
        least = min(r.makespan_s for r in rows if family(r.schedule) == family(row.schedule))
        assert least <= row.makespan_s


GRID = np.random.default_rng(0).random((16, 16)) < 0.4
GRIDS = rl.Blocks(GRID.tolist(), 4096)
CUT = " --by-rows"


@pytest.mark.parametrize("pass_", ["forward", "both"])
def test_rows_that_see_the_same_keys_are_listed_as_one_call(pass_: Passes) -> None:
    work = rl.Workload(seq=2**16, heads=8, kv_heads=4, mask=GRIDS)
    compared = rl.compare(work, 4, H100, ["ulysses", "zigzag"], pass_=pass_)
    assert compared.grouped_tried == 2
    rows = compared.rows
    times = {row.schedule: row.makespan_s for row in rows}
    assert times[f"ulysses{CUT}"] <= 0.9 * times["ulysses"]
    (again,) = rl.compare(work, 4, H100, [f"ulysses{CUT}"], pass_=pass_).rows
    assert (again.schedule, again.makespan_s) == (f"ulysses{CUT}", times[f"ulysses{CUT}"])
    plans = rl.compare(work, 4, H100, ["ulysses"], pass_=pass_, variants=False).rows
    assert [row.schedule for row in plans] == ["ulysses"]


def test_grouped_rows_are_executed_on_a_smaller_workload() -> None:
    work = rl.Workload(seq=512, heads=4, mask=rl.Blocks(GRID.tolist(), 32))
    (row,) = rl.compare(work, 4, H100, [f"ulysses{CUT}"], checked=True).rows
    assert row.exact


def test_commands_cut_by_rows_as_compare_does(ringloom: CommandLine, tmp_path: Path) -> None:
    file = tmp_path / "grid.json"
    file.write_text(json.dumps({"size": 4096, "grid": GRID.astype(int).tolist()}))
    case = ["--ranks", "4", "--seq", "64k", "--heads", "8", "--mask", f"blocks@{file}"]
    machine = ["--hardware", "h100"]
    (row,) = ringloom.json("compare", *case, *machine, "--schedules", f"ulysses{CUT}")["rows"]
    whole, cut = (
        ringloom.json("simulate", "ulysses", *flag, *case, *machine)["makespan_s"]
        for flag in ([], ["--by-rows"])
    )
    assert row["makespan_s"] == cut <= 0.9 * whole
    plans = [ringloom("plan", "ulysses", *flag, *case) for flag in ([], ["--by-rows"])]
    assert plans[0] != plans[1]


ALONE = "full", "causal", "window:64", "causal & documents:1000,3096"
SHARED = "prefix:100", "global:10", "causal & (window:64 | global:10)"


@pytest.mark.parametrize("mask", [*ALONE, *SHARED])
def test_rows_are_not_cut_where_no_others_see_their_keys(
    mask: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    work, asked = rl.Workload(seq=4096, heads=8, mask=mask), list[object]()
    monkeypatch.setattr("ringloom.trials.by_rows", lambda plans, _: asked.append(plans) or plans)
    rows = rl.compare(work, 4, H100, ["ring"]).rows
    assert all(CUT not in row.schedule for row in rows)
    assert shares_keys(work) == bool(asked) == (mask in SHARED)


def test_the_command_says_how_many_settings_were_tried_and_pruned(ringloom: CommandLine) -> None:
    case = ["compare", "--ranks", "4", "--seq", "16k", "--heads", "16", "--kv-heads", "4"]
    case += ["--mask", "window:2048"]
    counts = ringloom.json(*case)["variants"]
    assert counts["tried"] == len(further_schedules(WORK, 4, 8))
    said = f"{counts['tried']} more settings tried, {counts['pruned']} skipped as too slow"
    assert said in " ".join(ringloom(*case).split())
    named = ringloom.json(*case, "--schedules", "ring")
    assert named["variants"] == {"tried": 0, "pruned": 0}
