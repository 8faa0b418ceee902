"""Comparisons answer which schedule to use: sorted rows, reasons, and what cannot run."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ringloom as rl
from command_line import CommandLine
from ringloom.cli import main
from ringloom.comparison import describe_request
from ringloom.planner.schedules import comparable_schedules
from ringloom.recommendation import CLOSE, recommend, why
from ringloom.report.summary import summary
from ringloom.rows import bound_multiple, cells, notes
from ringloom.simulator.hardware import hardware
from ringloom.simulator.prediction import kernel_seconds
from ringloom.trials import with_node_size
from ringloom.views.units import in_lines, times

WORK = rl.Workload(seq=65536, heads=32, head_dim=128, dtype="bfloat16")
NAMES = ["ring", "usp:ulysses=3", "zigzag", "striped", "balanced"]


@pytest.fixture(scope="module")
def compared() -> rl.Comparison:
    return rl.compare(WORK, 8, "h100", NAMES, variants=False)


def test_the_fastest_comes_first_and_what_cannot_run_last_with_its_reason(
    compared: rl.Comparison,
) -> None:
    times = [row.makespan_s for row in compared.rows]
    assert times == sorted(times) == [case.row.makespan_s for case in compared.cases]
    *rows, last = compared.as_rows()
    assert [row["schedule"] for row in rows] == [row.schedule for row in compared.rows]
    assert last["schedule"] == "usp:ulysses=3"
    assert "not 8 ranks" in last["reason"]
    assert {last[name] for name in rows[0]} == {"usp:ulysses=3", None}
    assert "usp:ulysses=3 cannot run: " in str(compared)


def test_the_title_tells_all_that_is_not_as_usual(compared: rl.Comparison) -> None:
    usual = "forward of 64k tokens, causal, 32 heads of 128, bfloat16, 8 ranks of h100"
    assert describe_request(WORK, "forward", 1024).endswith("bfloat16, 1024 ranks")
    assert "causal, 1 head of 128, bf" in describe_request(
        rl.Workload(seq=8, heads=1), "forward", 2
    )
    assert compared.title == usual
    masks = "documents:" + ",".join(["2", "16382"] * 16)
    odd = rl.Workload(
        *(1, 2**18, 32, 8, 192, 4),
        v_head_dim=128,
        sinks=True,
        mask=masks,
    )
    slow = rl.Scenario(overlap=False, speeds=[1.0, 0.5], links={(0, 1): 0.1}, topology="switch")
    assert rl.compare(odd, 2, "h100", ["tree"], pass_="both", scenario=slow).title == (
        "forward and backward of 4 x 1 query token over 256k keys, "
        f"documents:{'2,16382,' * 8}2, ... 16382,{'2,16382,' * 3} 32 heads of 192"
        " with values of 128, 8 KV heads, sinks, bfloat16, 2 ranks of h100,"
        " transfers and compute one after the other,"
        " speeds 1.0,0.5, links 0-1=0.1, topology switch"
    )


def test_where_no_bound_holds_none_is_drawn() -> None:
    work = rl.Workload(seq=1000, heads=7, head_dim=24, mask="documents:100,200,300,400")
    rows = rl.compare(work, 6, "h100", ["groups", "ring"], variants=False).rows
    assert [row.schedule for row in rows if row.bound_ratio is None] == ["groups"]
    marks = summary(rows).partition("<thead>")[2].split("<tbody")[1:]
    assert ['<i class="bound"' in one for one in marks] == [row.schedule == "ring" for row in rows]
    assert f"idle, {rows[0].bound_reason}; bound of compute and memory " in summary(rows)
    (note,) = notes(rows)
    assert note.startswith("c: multiple of the bound of compute and memory alone;")
    assert note.endswith(f" does not apply to groups: {rows[0].bound_reason}")
    last = [cells(row)[-1] for row in rows]
    ratios = [f"{bound_multiple(row.makespan_s / row.compute_bound_s)}c" for row in rows]
    assert [cell.field for cell in last] == ["compute_bound_ratio", "bound_ratio"]
    assert [last[0].text, last[1].text[-1].isdigit()] == [ratios[0], True]


def test_a_schedule_that_needs_more_memory_than_there_is_cannot_run(
    compared: rl.Comparison,
) -> None:
    peaks = {row.schedule: row.peak_bytes for row in compared.rows}
    room = (peaks["zigzag"] + peaks["balanced"]) / 2
    within = rl.compare(WORK, 8, "h100", NAMES, memory=room)
    assert {row.schedule for row in within.rows} == {"ring", "zigzag", "striped"}
    assert {each.schedule for each in within.refused} == {"balanced", "usp:ulysses=3"}
    with pytest.raises(
        rl.PlanError, match=r"ring: needs .* per rank, more than the 1 KiB available"
    ):
        rl.compare(WORK, 8, "h100", ["ring"], memory=1024)


@pytest.mark.parametrize(
    ("mask", "ranks", "under", "refused", "why"),
    [
        ("causal", 4, rl.Scenario(links={(0, 2): 0}), ["allgather"], "link 0-2 is cut"),
        ("documents:100,100,824", 6, rl.Scenario(buffers=1), ["allgather"], "stuck in step 0"),
    ],
)
def test_what_gets_stuck_cannot_run_and_nothing_else_is_refused_for_it(
    mask: str, ranks: int, under: rl.Scenario, refused: list[str], why: str
) -> None:
    """Blocks of the second ring split alone get stuck, too, so it has no such row."""
    work = rl.Workload(seq=1024, heads=12, head_dim=16, mask=mask)
    names, passes = ["ring", "allgather"], "forward" if ranks == 4 else "both"
    answer = rl.compare(work, ranks, "a100-nvlink", names, pass_=passes, scenario=under)
    assert [row.schedule for row in answer.rows] == ["ring"]
    assert [each.schedule for each in answer.refused] == refused
    assert why in answer.refused[0].reason


@pytest.mark.parametrize("schedules", ["ring", []])
def test_schedules_are_a_list_of_names(schedules: list[str]) -> None:
    with pytest.raises(rl.PlanError, match="schedules must be a list of names, such as"):
        rl.compare(WORK, 8, "h100", schedules)


def test_schedules_may_be_an_array_of_names() -> None:
    answer = rl.compare(WORK, 2, "h100", np.array(["ring", "zigzag"]), variants=False)
    assert {row.schedule for row in answer.rows} == {"ring", "zigzag"}


def test_where_none_can_run_each_has_its_reason_on_lines_that_fit(
    ringloom: CommandLine, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["ring", "allgather", "usp:ulysses=8:gather=3:layout=striped:order=context"]
    work = ["--ranks", "4", "--seq", "4k", "--heads", "8", "--memory", "0.001"]
    assert main(["compare", *work, "--schedules", ",".join(names)]) == 2
    said = capsys.readouterr().err.splitlines()
    assert said[0] == "ringloom: none of these schedules can run"
    assert [line.partition(": ")[0] for line in said[1:] if line[0] != " "] == names
    assert len(said) > 4
    assert max(map(len, said)) <= 80


def test_the_recommendation_is_the_fastest_beside_those_too_close_to_call(
    compared: rl.Comparison,
) -> None:
    first = compared.rows[0]
    near = replace(first, schedule="near", makespan_s=first.makespan_s * (CLOSE - 0.01))
    far = replace(first, schedule="far", makespan_s=first.makespan_s * (CLOSE + 0.01))
    advice = recommend([far, near, first])
    assert (advice.schedule, advice.close_to) == (first.schedule, ("near",))
    assert advice.reason.startswith(f"Use {first.schedule}: ")
    assert "Too close to call: near" in advice.reason
    assert "far takes 1.06x as long" in advice.reason
    assert recommend([first]).close_to == ()
    assert f"near takes 1.04x as long as {first.schedule}, too close to call" in why([first, near])
    assert "too close to call" not in why([first, far])


def test_ties_are_broken_by_bytes_then_memory_and_named(compared: rl.Comparison) -> None:
    first = replace(compared.rows[0], makespan_s=0.1, max_bytes_sent=100, peak_bytes=100)
    busy = replace(first, schedule="busy", makespan_s=0.09999, max_bytes_sent=101)
    large = replace(first, schedule="large", makespan_s=0.09998, peak_bytes=101)
    name = first.schedule
    for rows, said in (
        ([busy, large, first], f"Tied with large, busy; {name} sends the fewest bytes."),
        ([large, first], f"Tied with large; {name} needs the least memory."),
        ([replace(first, schedule="same"), first], f"Tied with {name}."),
    ):
        advice = recommend(rows)
        assert advice.answer.endswith(said)
        assert len(advice.close_to) == len(rows) - 1
    assert recommend([busy, large, first]).schedule == name
    far = replace(first, schedule="far", makespan_s=0.1006)
    assert "Tied" not in recommend([far, busy]).answer


def test_the_command_ends_with_the_recommendation(ringloom: CommandLine) -> None:
    command = ["compare", "--ranks", "8", "--seq", "64k", "--hardware", "h100"]
    command += ["--schedules", ",".join(NAMES)]
    document = ringloom.json(*command)
    assert document["recommendation"]["schedule"] == document["rows"][0]["schedule"]
    lines = ringloom(*command).splitlines()
    reason = document["recommendation"]["reason"]
    assert "".join(reason.split()) in "".join("".join(lines).split())
    (best,) = (line for line in lines if line.startswith("* ") and " ms" in line)
    assert document["rows"][0]["schedule"] in best


def test_variants_that_matter_on_the_machine_are_compared_unless_told_which() -> None:
    work = replace(WORK, kv_heads=8)
    machine = hardware("h100")
    usual = comparable_schedules(work, 16, machine.ranks_per_node)
    names = {with_node_size(name, 16, machine) for name in usual}
    assert {"allgather:node=8", "double-ring:node=8"} <= names
    assert "allgather" not in names  # a collective knows the nodes
    degrees = {f"usp:ulysses={n}{order}" for n in (2, 4, 8) for order in ("", ":order=context")}
    assert degrees == {name for name in names if name.startswith("usp")}
    one_node = {row.schedule for row in rl.compare(work, 8, "h100", variants=False).rows}
    assert one_node.isdisjoint({"allgather:node=8", "double-ring:node=8", "usp:ulysses=8"})
    assert {"usp:ulysses=2", "usp:ulysses=4", "ulysses"} <= one_node


def test_schedules_that_leave_a_cache_in_place_are_compared_where_there_is_one() -> None:
    cached, machine = {"tree", "decode-a2a", "pass-q"}, hardware("h100")
    assert cached.isdisjoint(comparable_schedules(WORK, 8, machine.ranks_per_node))
    decode = rl.compare(rl.Workload(seq=1, kv_seq=2**18, heads=32, kv_heads=8), 8, machine)
    assert cached <= {row.schedule for row in decode.rows}
    assert {row.schedule.split()[0] for row in decode.rows[:3]} == cached
    assert all(row.bound_ratio and row.bound_ratio < 4 for row in decode.rows[:3])


def test_pages_and_pictures_show_the_fastest_that_compare_lists(
    ringloom: CommandLine, tmp_path: Path
) -> None:
    case = ["--ranks", "4", "--seq", "1", "--kv-seq", "256k", "--kv-heads", "8"]
    every = ringloom.json("compare", *case)
    best = every["recommendation"]["schedule"]
    report = ringloom.json("report", *case, "-o", str(tmp_path / "page.html"))
    assert report["rows"] == [*every["rows"][:4], report["rows"][-1]]
    assert report["rows"][-1]["schedule"] == "ring"
    said = f"the fastest of {len(every['rows'])} schedules, and ring"
    page = (tmp_path / "page.html").read_text()
    assert f"<h1>Use {best}: " in page
    verified = "verified: every plan at the full length of 1 query token over 256k keys"
    assert verified in " ".join(ringloom("compare", *case, "--schedules", "ring,tree").split())
    assert said in page
    times = ringloom.json("sensitivity", *case)
    assert (times["fastest"], len(times["makespan_s"])) == (best, 3)
    assert said in " ".join(ringloom("sensitivity", *case).split())
    files = ringloom.json("figures", *case, "-o", str(tmp_path), "--format", "svg")["files"]
    assert {Path(file).name.split("_")[0] for file in files} == {"comparison.svg", "ring", best}
    assert "usp:ulysses=3 cannot run" in ringloom(
        "sensitivity", *case, "--schedules", "ring,usp:ulysses=3"
    )


def test_what_is_shown_of_a_comparison_recommends_what_all_of_it_does() -> None:
    work = rl.Workload(seq=2**15, heads=32, kv_heads=8, mask="full")
    every = rl.compare(work, 2, "h800")
    few = every.fastest(3)
    assert len(every.recommendation.close_to) > 3
    assert few.recommendation == every.recommendation
    assert [case.row.schedule for case in few.cases].count("ring") == 1
    decode = rl.Workload(seq=1, kv_seq=2**17, heads=32, kv_heads=8)
    ring = rl.compare(decode, 8, "h800", ["ring"]).rows[0].peak_bytes
    lean = rl.compare(decode, 8, "h800", memory=ring - 1).fastest(3)
    assert len(lean.cases) == 3
    assert lean.title.endswith(" schedules")
    assert "ring" in {one.schedule for one in lean.refused}


def test_no_name_is_cut_off_in_eighty_columns(ringloom: CommandLine) -> None:
    name = "usp:ulysses=8:order=context"
    command = ["compare", "--ranks", "16", "--seq", "64k", "--kv-heads", "8"]
    out = ringloom(*command, "--schedules", f"ring,{name}")
    assert "…" not in out
    assert max(map(len, out.splitlines())) <= 80


@pytest.mark.parametrize(
    ("schedule", "lines"),
    [
        ("zigzag", ["zigzag"]),
        ("usp:ulysses=2:order=context", ["usp:ulysses=2", " :order=context"]),
        ("usp:ulysses=2 --trim blocks", ["usp:ulysses=2", " --trim blocks"]),
    ],
)
def test_a_long_schedule_is_broken_before_a_parameter(schedule: str, lines: list[str]) -> None:
    assert in_lines(schedule).splitlines() == lines


def test_large_ratios_are_whole_numbers() -> None:
    one = rl.simulate(rl.plan("ring", rl.Workload(seq=1, kv_seq=1024, heads=8), 8), "h100")
    assert re.search(r", \d,\d\d\d times the lower bound>", repr(one))
    assert [times(ratio) for ratio in (1.234, 99, 613.4, 1e4)] == [
        "1.23x",
        "99.00x",
        "613x",
        ">999x",
    ]


SPARSE = "window:4096", "causal & documents:100,9000,292,7000,5376,11000"


@pytest.mark.parametrize("mask", ["causal", *SPARSE])
def test_every_name_of_a_row_is_accepted_as_a_schedule(mask: str) -> None:
    work = rl.Workload(seq=2**15, heads=8, kv_heads=8, mask=mask)
    rows = rl.compare(work, 8, "a100-pcie").rows
    names = [row.schedule for row in rows]
    assert mask == "causal" or any(name.endswith(" --trim blocks") for name in names)
    again = rl.compare(work, 8, "a100-pcie", names, variants=False).rows
    assert {row.schedule: row.makespan_s for row in again} == {
        row.schedule: row.makespan_s for row in rows
    }


def test_names_of_rows_are_typed_back(ringloom: CommandLine) -> None:
    case = ["compare", "--ranks", "4", "--seq", "4k", "--mask", "window:64"]
    (row,) = ringloom.json(*case, "--schedules", "llama3 --trim blocks")["rows"]
    assert row["schedule"] == "llama3 --trim blocks"
    refused = ringloom.refused(*case, "--schedules", "llama3 --trim pieces")
    assert "unknown trim 'pieces'" in refused


@pytest.mark.parametrize("mask", ["causal", *SPARSE])
def test_splitting_messages_leaves_attends_and_their_time_as_they_were(mask: str) -> None:
    """So schedules whose kernels alone take too long need not be split."""
    work, machine = rl.Workload(seq=2**15, heads=8, kv_heads=8, mask=mask), hardware("h100")
    for name in comparable_schedules(work, 8, machine.ranks_per_node):
        whole = rl.plan(name, work, 8, pass_="both")
        split = rl.plan(name, work, 8, pass_="both", trim="blocks")
        for one, other in zip(whole, split, strict=True):
            assert [a for _, a in one.attends()] == [a for _, a in other.attends()], name
        floor = kernel_seconds(whole, machine, rl.Scenario())
        assert floor <= min(rl.simulate(one, machine).makespan for one in (whole, split)), name


def test_schedules_whose_kernels_take_too_long_are_not_split(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    split, counts = list[str](), dict[str, int]()

    def counted(name: str, *given: Any, trim: str, **how: Any) -> Any:
        split.extend([name] * (trim == "blocks"))
        return rl.plan(name, *given, trim=trim, **how)

    monkeypatch.setattr("ringloom.trials.plan", counted)
    for mask in ("full", "causal", "window:4096"):
        work = rl.Workload(seq=2**18, heads=8, kv_heads=8, mask=mask)
        compared = rl.compare(work, 8, "h100", ["zigzag", "ring", "usp:ulysses=2", "usp"])
        counts[mask] = compared.split_tried
        assert len(split) == compared.split_tried
        assert compared.split_tried + compared.split_skipped == 4 * (mask != "full")
        split.clear()
    assert counts["full"] == 0
    assert counts["causal"] <= 1 < counts["window:4096"]


def test_schedules_that_are_not_reached_come_last_with_the_reason(ringloom: CommandLine) -> None:
    case = ["compare", "--ranks", "4", "--seq", "4k", "--schedules", "zigzag,ring,ulysses"]
    first, *others = ringloom.json(*case, "--time-limit", "0")["rows"]
    assert (first["schedule"], first["makespan_s"] > 0) == ("ring", True)
    assert [one["schedule"] for one in others] == ["zigzag", "ulysses"]
    assert {one["makespan_s"] for one in others} == {None}
    assert {one["reason"] for one in others} == {"not started within 0 s"}
    assert "zigzag was not tried: not started within 0 s" in ringloom(*case, "--time-limit", "0")
    assert len(ringloom.json(*case, "--time-limit", "100")["rows"]) == 3


@pytest.mark.parametrize(
    ("mask", "more"),
    [
        ("causal", set()),
        ("window:4096", {"group-cast"}),
        ("causal & documents:8000,8384", {"groups", "group-cast"}),
    ],
)
def test_schedules_for_sparse_masks_are_compared_under_them(mask: str, more: set[str]) -> None:
    names = comparable_schedules(rl.Workload(seq=2**14, heads=8, mask=mask), 4, 8)
    assert {"groups", "group-cast"} & set(names) == more
