"""Published measurements: predicted with constants that name no schedule, by a frozen fit."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from math import expm1
from pathlib import Path
from typing import Any

import frozen_fit
import measurements
import own_runs
import pytest
import sanity_checks
from sanity_checks import CHECKS, count_failures

from command_line import CommandLine
from ringloom.planner.errors import RingloomError
from ringloom.planner.ir import Plan
from ringloom.planner.planning import plan
from ringloom.planner.workload import Workload
from ringloom.reproduce import validation
from ringloom.reproduce.measured import ROWS, Measured, measured, published_rows
from ringloom.reproduce.tables import Line, Table
from ringloom.reproduce.validation import Decision, Errors
from ringloom.simulator.hardware import Hardware, hardware, machines
from ringloom.simulator.prediction import Prediction, simulate
from ringloom.simulator.timeline import spans
from ringloom.trials import with_node_size

HOSTS = "h100:fa2", "h100:fa3", "b200:cudnn", "h100"  # whose calls the host of an H100 holds up


@pytest.fixture
def rows() -> Sequence[Measured]:
    return published_rows()


def schedules_of(rows: Sequence[Measured]) -> list[Measured]:
    return [row for row in validation.stated(rows) if row.ranks > 1]


def test_fully_stated_rows_are_predicted_within_five_percent_in_the_mean(
    rows: Sequence[Measured],
) -> None:
    stated, whole = validation.stated(rows), schedules_of(rows)
    assert (len(stated), len(whole)) == (155, 24)
    every, schedules = (Errors.of(row.error for row in subset) for subset in (stated, whole))
    assert every.mean < 0.05
    assert every.worst < 0.2
    assert sum(abs(row.error) < 0.15 for row in stated) >= 0.9 * len(stated)
    assert schedules.mean < 0.05


def test_context_says_why_and_counts_in_no_mean(rows: Sequence[Measured]) -> None:
    context = [row for row in rows if row.use == "context"]
    assert len(context) >= 37
    assert all(row.why for row in context)
    assert not set(context) & set(validation.stated(rows))
    tables = [each for each in validation.tables(context) if each.lines[0].context]
    assert sum(len(each.lines) for each in tables) == len(context)
    assert {each.summary.compared for each in tables} == {0}
    mixed = Table("", [Line("", 1.0, 2.0, context=True), Line("", 1.0, 1.1)])
    assert mixed.summary.mean_error == pytest.approx(0.1)


def test_what_is_not_predicted_is_listed_with_its_reason() -> None:
    listed = validation.context()
    assert len(listed) >= 50
    assert all(line.note and line.context and line.ours is None for line in listed)
    assert [line.what for line in listed if line.published is None] == [
        line.what for line in listed if "no time" in line.note
    ]


def test_rows_far_off_have_a_likely_cause(rows: Sequence[Measured]) -> None:
    far = [r for r in validation.stated(rows) if abs(expm1(r.error)) > measurements.LARGE_ERROR]
    assert [row.name for row in far if not row.why] == []


def test_runs_on_gpus_of_our_own_are_predicted_for_the_kernel_that_ran() -> None:
    """A flash kernel's run is far from the curve of another kernel, and near its own."""
    every = own_runs.runs()
    assert len(every) >= 19
    assert {run.kernel for run in every} == own_runs.CURVES.keys()
    near = [run for run in every if abs(run.error) <= own_runs.LIMIT]
    assert len(near) >= 0.9 * len(every)
    flash = [run for run in near if run.kernel == "flash"]
    assert flash
    assert all(replace(run, kernel="cuDNN").error < -0.3 for run in flash)
    assert "Own runs" in "\n".join(measurements.page())


def test_one_h800_runs_8k_tokens_as_often_as_published(rows: Sequence[Measured]) -> None:
    single = [row for row in rows if row.source == "ring-flash-attention" and row.ranks == 1]
    assert [row.value / 8 for row in single] == pytest.approx([73.9, 19.3])
    assert [row.ours for row in single] == pytest.approx([row.value for row in single], rel=0.03)


def test_a100_kernels_are_within_five_percent_of_their_charts(rows: Sequence[Measured]) -> None:
    a100 = [row for row in rows if row.on == "a100-nvlink" and row.ranks == 1]
    assert len(a100) == 24
    assert Errors.of(row.error for row in a100).worst < 0.05


def test_no_published_order_comes_out_wrong_and_few_are_too_close(rows: Sequence[Measured]) -> None:
    made = validation.decisions([row for row in rows if row.ranks > 1])
    verdicts = [one.verdict for one in made]
    assert len(verdicts) >= 20
    assert "wrong" not in verdicts
    assert verdicts.count("too close") <= len(verdicts) / 3


def test_a_verdict_follows_the_interval_of_the_ratio() -> None:
    one = Decision("", "a", "b", 1.2, 1.3, (1.1, 1.5))
    assert one.verdict == "right"
    assert replace(one, published=0.8).verdict == "wrong"
    assert replace(one, interval=(0.9, 1.5)).verdict == "too close"


def test_overlap_costs_more_than_it_hides_on_fast_links_and_short_sequences() -> None:
    """A ring of two against gathering first: transfers, merging and launches cost what they hide.

    Published on NVLink at 2k, 8k, 32k and 64k tokens: 1.20, 1.04, 1.00, 1.00; on PCIe 0.97 to 0.71.
    """
    ratios = [row for row in published_rows() if row.source == "vllm-omni 5092"]
    fast, slow = ([r.ours for r in ratios if (r.on == "h100") == is_fast] for is_fast in (1, 0))
    assert fast == sorted(fast, reverse=True)
    assert min(fast) > 1 > max(slow[1:])


def test_the_fit_is_frozen_with_its_date_its_rows_and_its_constants(
    rows: Sequence[Measured],
) -> None:
    """Where this fails, rows or constants have changed: fit, then call `frozen_fit.freeze`."""
    frozen = validation.frozen()
    assert frozen["rows"] == len(rows)
    assert frozen["sha256"] == frozen_fit.digest(ROWS)
    now = {name: frozen_fit.fitted_constants(name) for name in machines()}
    assert {name: own for name, own in now.items() if own} == frozen["constants"]


def test_a_chip_has_five_rows_or_more_for_each_fitted_constant(rows: Sequence[Measured]) -> None:
    stated = validation.stated(rows)
    every = frozen_fit.find_fits(stated)
    for chips in {one.chips for one in every}:
        own = [row for row in stated if row.on in chips]
        assert 1 <= sum(one.chips == chips for one in every) <= len(own) / 5


def test_no_fitted_constant_belongs_to_a_row_or_a_schedule(rows: Sequence[Measured]) -> None:
    """Times of as many rows change with it; what two chips share was fitted to rows of both."""
    constants = {(one.constant, one.chips): one.rows for one in frozen_fit.find_fits(rows)}
    ring, host = (
        constants.pop(key)
        for key in (("attention.merge", ("h800:fa2",)), ("attention.host", HOSTS))
    )
    assert {row.schedule for row in ring} == {"ring", "zigzag", "striped"}
    assert len(ring) >= 6
    assert {row.on for row in host} == {"h100:fa3", "b200:cudnn"}
    assert len(host) >= 3
    assert len(constants) >= 14
    assert min(map(len, constants.values())) >= 6


def test_every_fitted_constant_has_a_physical_range() -> None:
    for name in machines():
        constants = hardware(name).constants
        for key in frozen_fit.fitted_constants(name):
            assert constants[key].range, (name, key)


def test_rows_of_another_file_are_judged_blind(tmp_path: Path, ringloom: CommandLine) -> None:
    file = tmp_path / "new.csv"
    file.write_text(
        "hardware,pass,schedule,ranks,seq,heads,kv_heads,head_dim,quantity,value,versus\n"
        "h100,forward,ulysses,8,65536,64,8,128,tflops,602,\n"
        "h100,forward,zigzag,8,65536,64,8,128,ms,20.9,\n"
        "h100,forward,zigzag,8,65536,64,8,128,ratio,1.43,ulysses\n"
    )
    document = ringloom.json("reproduce", "--validate", str(file))
    first, second, third = document["rows"]
    assert {row["use"] for row in document["rows"]} == {"blind"}
    assert first["predicted_s"] / first["published_s"] - 1 == pytest.approx(first["error"])
    assert first["interval_s"][0] < first["predicted_s"] < first["interval_s"][1]
    assert first["baselines"].keys() == {"peak", "serial", "formula"}
    assert second["predicted"] == pytest.approx(1e3 * second["predicted_s"])
    ratio = second["predicted_s"] / first["predicted_s"]
    assert third["predicted"] == pytest.approx(ratio)
    assert [one["verdict"] for one in document["decisions"]] == ["right", "right"]
    assert document["summary"]["rows"] == 3
    assert document["frozen"]["date"]
    assert "blind" in ringloom("reproduce", "--validate", str(file))


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("h100,sideways,ring,8,4096,8,128,ms,1,", "unknown pass"),
        ("h100,forward,ring,0,4096,8,128,ms,1,", "ranks must be a positive integer"),
        ("h100,forward,ring,8,4096,8,128,miles,1,", "unknown quantity"),
        ("h100,forward,ring,8,4096,8,128,ms,,", "value is missing"),
        ("h100,forward,ring,8,4096,8,128,ratio,1,", "needs a versus"),
        ("h1000,forward,ring,8,4096,8,128,ms,1,", "unknown hardware"),
    ],
)
def test_a_row_that_makes_no_sense_is_refused_by_name(row: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    head = "hardware,pass,schedule,ranks,seq,heads,head_dim,quantity,value,versus\n"
    file.write_text(head + row + "\n")
    with pytest.raises(RingloomError, match=f"row 1: .*{said}"):
        [each.machine for each in measured(file)]


def test_collectives_know_the_nodes_of_a_machine() -> None:
    h100 = hardware("h100")
    assert with_node_size("allgather", 16, h100) == "allgather:node=8"
    assert with_node_size("allgather", 8, h100) == "allgather"
    assert with_node_size("allgather", 12, h100) == "allgather"
    assert with_node_size("allgather:node=1", 16, h100) == "allgather:node=1"
    assert with_node_size("zigzag", 16, h100) == "zigzag"


def test_the_loss_of_the_ring_has_causes_that_can_be_taken_away() -> None:
    """Merging through memory is most of it, calls on shorter blocks the rest; transfers hide."""
    work, machine = Workload(seq=65536, heads=64, kv_heads=8, head_dim=128), hardware("h100")

    def seconds(schedule: str, **changed: float) -> float:
        values = {key.replace("__", "."): value for key, value in changed.items()}
        return simulate(plan(schedule, work, 8), machine.changed(values)).makespan

    whole, best = seconds("zigzag"), seconds("ulysses")
    fused = seconds("zigzag", attention__merge=1.0)
    smooth = seconds("zigzag", attention__merge=1.0, attention__traffic=0.0)
    assert best < 0.77 * whole
    assert whole / fused > 1.2
    assert fused / smooth > 1.02
    assert whole < 1.03 * seconds("zigzag", intra__bandwidth=1e15)


def test_every_check_of_soundness_is_made_and_none_fails() -> None:
    counts = count_failures(ranks=4, seq=2**12)
    assert counts.keys() == CHECKS.keys()
    assert all(each.runs >= 80 and not each.failed for each in counts.values())


@pytest.mark.parametrize("check", CHECKS)
def test_each_check_of_soundness_counts_what_is_wrong(
    check: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, runs = plan("ring", Workload(seq=2**12, heads=2), 4), count(1)

    def faulty(plan: Plan, machine: Hardware, **how: Any) -> Prediction:
        result = simulate(plan, machine, **how)
        wrong = {
            "bounds": {"bound": replace(result.bound, seconds=2 * result.makespan)},
            "monotonicity": {"makespan": result.makespan * (1 if how else 2)},
            "engines": {"makespan": result.makespan * (2 if "engine" in how else 1)},
            "determinism": {"makespan": result.makespan * next(runs)},
            "causality": {},
        }
        return replace(result, **wrong[check])

    monkeypatch.setattr(sanity_checks, "_plans", lambda ranks, seq: [one])
    monkeypatch.setattr(sanity_checks, "simulate", faulty)
    if check == "causality":
        monkeypatch.setattr(
            sanity_checks, "spans", lambda line: [replace(s, start=0.0) for s in spans(line)]
        )
    counts = count_failures()
    assert counts[check].failed
    others = {"monotonicity", "engines"} if check == "determinism" else set()
    assert {name for name, each in counts.items() if each.failed} <= {check} | others
