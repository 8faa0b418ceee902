"""Settings that compare tries: accepted as typed, pruned soundly, the best of each listed."""

from collections import Counter

import pytest

import ringloom as rl
from command_line import CommandLine
from planner.planning import find_schedule
from planner.schedules import comparable, further
from planner.schedules.variants import FAMILIES
from ringloom.trials import SPLIT, asked_for, with_trim
from simulator.hardware import hardware
from simulator.prediction import kernel_seconds

H100 = hardware("h100")
WORK = rl.Workload(seq=2**14, heads=16, kv_heads=4, mask="window:2048")
MASKS = "full", "causal", "window:2048", "causal & documents:4000,4384,8000"


def family(name: str) -> str:
    return find_schedule(with_trim(name)[0])[0].name


@pytest.mark.parametrize("mask", MASKS)
def test_further_settings_are_accepted_as_they_are_written(mask: str) -> None:
    work = rl.Workload(seq=2**14, heads=16, kv_heads=4, mask=mask)
    for ranks, node in ((4, 8), (16, 8)):
        names = further(work, ranks, node)
        assert len({*names}) == len(names) > len(FAMILIES)
        assert {*names}.isdisjoint(comparable(work, ranks, node))
        assert {family(name) for name in names} <= {*FAMILIES}
        every = asked_for(None, work, ranks, H100)
        assert every[: -len(names)] == asked_for(None, work, ranks, H100, variants=False)
        for name in every if ranks == 4 else []:
            assert rl.plan(name, work, ranks).name == name


def test_layouts_are_tried_where_the_mask_tells_them_apart() -> None:
    def layouts(mask: str) -> set[str]:
        names = further(rl.Workload(seq=2**14, heads=16, kv_heads=4, mask=mask), 4, 8)
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
    for name in asked_for(None, work, 4, H100):
        times[name] = rl.simulate(rl.plan(name, work, 4), H100).makespan
    best = every.rows[0].makespan_s
    assert best <= min(times.values())
    assert every.tried == len(further(work, 4, 8)) > every.pruned
    kernels = [
        kernel_seconds(rl.plan(name, work, 4), H100, rl.Scenario()) for name in further(work, 4, 8)
    ]
    assert every.pruned <= sum(one > best for one in kernels)


def test_the_best_of_each_schedule_is_listed_once() -> None:
    rows = rl.compare(WORK, 4, H100).rows
    shown = Counter(family(row.schedule) for row in rows if SPLIT not in row.schedule)
    assert set(shown.values()) == {1}
    assert "ring" in shown
    usual = rl.compare(WORK, 4, H100, variants=False).rows
    assert rows[0].makespan_s < usual[0].makespan_s  # a contiguous all-gather, for one
    for row in usual:
        least = min(r.makespan_s for r in rows if family(r.schedule) == family(row.schedule))
        assert least <= row.makespan_s


def test_the_command_says_how_many_settings_were_tried_and_pruned(ringloom: CommandLine) -> None:
    case = ["compare", "--ranks", "4", "--seq", "16k", "--heads", "16", "--kv-heads", "4"]
    case += ["--mask", "window:2048"]
    counts = ringloom.json(*case)["variants"]
    assert counts["tried"] == len(further(WORK, 4, 8))
    said = f"{counts['tried']} further settings tried, {counts['pruned']} of them pruned"
    assert said in " ".join(ringloom(*case).split())
    named = ringloom.json(*case, "--schedules", "ring")
    assert named["variants"] == {"tried": 0, "pruned": 0}
