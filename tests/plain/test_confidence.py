"""Intervals of predictions: they hold published rows, and what is too close is said to be so."""

import math
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from statistics import median

import pytest
from cross_validation import leave_out_sources
from frozen_fit import current_errors

import ringloom as rl
from command_line import CommandLine
from ringloom.explore.choices import from_query
from ringloom.explore.view import compare_with_ring, finding
from ringloom.planner.planning import plan
from ringloom.planner.plans import Plans
from ringloom.planner.workload import Workload
from ringloom.recommendation import recommend
from ringloom.simulator.confidence import (
    STUDENT_90,
    Residual,
    basis,
    effects,
    interval,
    ratio_error,
    ratio_interval,
    residuals,
    sensitivity,
    spread,
    unvalidated,
)
from ringloom.simulator.hardware import hardware, load, presets
from ringloom.simulator.prediction import simulate
from ringloom.simulator.scenario import Scenario

WORK = Workload(seq=2**14, heads=8)
NAMES = ["ring", "zigzag", "ulysses"]
PLANS = {name: Plans.of(plan(name, WORK, 8)) for name in NAMES}
H100, TPU = hardware("h100"), hardware("tpu-v4")
EVEN = Scenario()


def test_the_frozen_errors_are_those_of_the_published_rows() -> None:
    """Where this fails, predictions have changed: see `frozen_fit.freeze`."""
    now = current_errors()
    assert [replace(row, error=0) for row in now] == [replace(r, error=0) for r in residuals()]
    for row, frozen in zip(now, residuals(), strict=True):
        assert row.error == pytest.approx(frozen.error, abs=1e-3), row.what


def test_without_its_own_rows_the_interval_holds_most_rows_of_a_source_and_is_narrow() -> None:
    parts = leave_out_sources()
    total = sum(part.rows for part in parts)
    assert len(parts) >= 5
    assert {row.pass_ for row in residuals()} == {"forward", "backward", "both"}
    assert total == len(residuals()) > 100
    assert all(part.inside >= 0.85 * part.rows for part in parts)
    halves = [part.half_width for part in parts for _ in range(part.rows)]
    assert median(halves) <= 0.2
    assert max(halves) < 0.25


def errors(source: str, *values: float, on: str = "h100") -> list[Residual]:
    return [Residual(on, source, "forward", 8, "", value) for value in values]


def test_the_rows_of_a_source_are_judged_by_the_errors_of_all_others() -> None:
    """Two sources are near and one is far: only where it is left out are its rows outside."""
    near = [*errors("a", 0.01, -0.01, 0.01), *errors("b", 0.01, 0.01)]
    far = errors("far", 0.5, 0.01, -0.5)
    one = math.expm1(STUDENT_90[0] * 0.01)
    parts = leave_out_sources([*near, *far])
    assert [(part.source, part.rows, part.inside) for part in parts] == [
        ("a", 3, 3),
        ("b", 2, 2),
        ("far", 3, 1),
    ]
    assert parts[-1].half_width == pytest.approx(one)
    assert parts[0].half_width > 1


def test_most_ratios_of_published_rows_are_off_by_less_than_said() -> None:
    whole = [row for row in residuals() if row.ranks > 1]
    pairs = [p for p in combinations(whole, 2) if p[0].source == p[1].source]
    inside = [abs(a.error - b.error) <= ratio_error(a.hardware, a.pass_) for a, b in pairs]
    assert sum(inside) >= 0.85 * len(pairs) > 100


def test_a_pass_that_three_sources_timed_on_a_chip_is_judged_by_these_rows_alone() -> None:
    rows = [row for source in "abc" for row in errors(source, 0.01, -0.01)]
    rows += errors("d", 0.5, on="h800")
    own = basis("h100:fa3", "forward", rows)
    assert own.error == pytest.approx(STUDENT_90[1] * 0.01)
    assert own.as_dict() == {
        "chip": "h100",
        "rows": 6,
        "sources": 3,
        "words": "6 rows of 3 sources that timed forward passes on h100",
    }
    for name, pass_ in (("h800", "forward"), ("h100", "backward"), ("h100", "both")):
        every = basis(name, pass_, rows)
        assert every.error > 0.3
        assert every.chip is None
        timed = "both passes together" if pass_ == "both" else f"{pass_} passes"
        said = f"on all chips: fewer than 3 sources timed {timed} on {name}"
        assert every.words == f"7 rows of 4 sources {said}"


def test_a_source_of_many_rows_counts_as_one_of_few() -> None:
    few = [*errors("a", 0.01), *errors("b", 0.03), *errors("c", 0.02)]
    many = [*errors("a", *[0.01] * 99), *few[1:]]
    assert basis("h100", "forward", many).error == pytest.approx(basis("", "both", few).error)


def test_orders_of_schedules_are_marked_where_none_was_ever_measured(
    ringloom: CommandLine, tmp_path: Path
) -> None:
    marked = {name for name in presets() if unvalidated(hardware(name))}
    assert {"tpu-v4", "tpu-v5p", "tpu7x", "mi300x", "rtx-4090"} <= marked
    assert not marked & {"h100", "h200", "a100-nvlink", "b200", "gb200-nvl72"}
    work = ["--ranks", "4", "--seq", "4k", "--schedules", "ring,zigzag"]
    for name, sure in (("tpu-v4", False), ("h100", True)):
        command = ["compare", *work, "--hardware", name]
        document = ringloom.json(*command)
        assert document["order_validated"] is sure
        assert document["interval_basis"] == basis(name, "forward").as_dict()
        said = [" ".join(ringloom(*command).split()), document["recommendation"]["answer"]]
        assert all(("The order is not validated" in text) is not sure for text in said)
        command[0] = "sensitivity"
        assert ringloom.json(*command)["order_validated"] is sure
        said = " ".join(ringloom(*command).split())
        assert ("The order is not validated" in said) is not sure
    file = tmp_path / "page.html"
    assert not ringloom.json("report", *work, "--hardware", "tpu-v4", "-o", str(file))[
        "order_validated"
    ]
    assert "The order is not validated" in file.read_text(encoding="utf-8")
    choices = from_query({"hardware": "tpu-v4", "schedule": "zigzag", "ranks": "4", "seq": "4k"})
    assert "The order is not validated" in finding(choices, compare_with_ring(choices))


def test_a_tenth_more_of_everything_that_takes_time_is_a_tenth_more_time() -> None:
    """Effects of small changes add up: time is proportional to all its constants together."""
    small = 1e-4
    for one in PLANS.values():
        slower = {
            key: H100[key] * (1 + small if key.endswith("alpha") else 1 / (1 + small))
            for key in ("peak.bfloat16", "memory.bandwidth", "intra.bandwidth", "intra.alpha")
        }
        slower["attention.host"] = H100["attention.host"] * (1 + small)
        assert sum(effects(one, H100, EVEN, slower).values()) == pytest.approx(small, rel=0.02)


@pytest.mark.parametrize("name", presets())
def test_intervals_hold_the_prediction_and_are_wider_where_constants_are_uncalibrated(
    name: str,
) -> None:
    machine = hardware(name)
    took = simulate(PLANS["zigzag"], machine).makespan
    low, high = interval(machine, "forward", took, spread(PLANS["zigzag"], machine, EVEN))
    assert low < took < high
    sure = replace(
        machine,
        constants={k: replace(c, calibrated=True) for k, c in machine.constants.items()},
    )
    near, far = interval(sure, "forward", took, spread(PLANS["zigzag"], sure, EVEN))
    assert far / near == pytest.approx(math.exp(2 * basis(name, "forward").error))
    assert far / near <= high / low * (1 + 1e-9)


def test_what_slows_both_plans_alike_does_not_blur_their_ratio() -> None:
    """A TPU's rate is uncertain by half, and yet zigzag is clearly faster than a ring."""
    plans = [Plans.of(plan(name, replace(WORK, seq=2**17), 8)) for name in ("ring", "zigzag")]
    one, other = (spread(each, TPU, EVEN) for each in plans)
    took = [simulate(each, TPU).makespan for each in plans]
    low, high = ratio_interval(TPU.name, "forward", took[0] / took[1], one, other)
    assert 1 < low < took[0] / took[1] < high
    alone = interval(TPU, "forward", took[0], one)
    assert high / low < alone[1] / alone[0]
    assert ratio_interval(TPU.name, "forward", 1.0, one, one)[1] == pytest.approx(
        math.exp(ratio_error("", "forward"))
    )


class Hashed(str):
    """A name with a hash of its own, as another process might give it."""

    __slots__ = ("place",)

    def __hash__(self) -> int:
        return self.place


def test_a_ratio_has_the_same_interval_whatever_the_hashes_of_constants() -> None:
    intervals = set[tuple[float, float]]()
    for order in (range(64), range(63, -1, -1)):
        effects = dict[str, float]()
        for number, place in enumerate(order):
            name = Hashed(number)
            name.place = place
            effects[name] = 1e-8 if number else 1.0  # whose squares are lost beside 1, one by one
        intervals.add(ratio_interval("h100", "forward", 1.0, effects, {}))
    assert len(intervals) == 1


def test_schedules_are_too_close_to_call_where_the_interval_of_their_ratio_holds_one() -> None:
    first, *_ = rl.compare(WORK, 8, "h100", NAMES).rows
    near = replace(first, schedule="near", makespan_s=first.makespan_s * 1.04)
    unsure = replace(near, ratio_interval=(0.99, 1.2))
    sure = replace(near, ratio_interval=(1.01, 1.2))
    assert recommend([first, unsure]).close_to == ("near",)
    assert recommend([first, sure]).close_to == ()


def test_the_uncalibrated_constant_of_the_most_doubt_is_to_be_measured_first(
    ringloom: CommandLine, tmp_path: Path
) -> None:
    rows, times = sensitivity(PLANS, TPU)
    assert rows[0].constant == "attention.forward"
    assert times == {n: simulate(p, TPU).makespan for n, p in PLANS.items()}
    (rate,) = (row for row in rows if row.constant == "peak.bfloat16")
    less, more = rate.seconds["zigzag"]
    assert more < times["zigzag"] < less
    work = ["--ranks", "8", "--seq", "16k", "--heads", "8", "--hardware", "tpu-v4"]
    work += ["--schedules", ",".join(NAMES)]
    command = ["sensitivity", *work, "--vary", "intra.bandwidth=1e8:1e12"]
    document = ringloom.json(*command)
    assert document["measure_first"] == "attention.forward"
    assert document["rows"][0]["constant"] == "attention.forward"
    picture = tmp_path / "curve.svg"
    said = ringloom(*command, "--picture", str(picture))
    assert "Measure attention.forward first: it may change the time by" in said
    assert len({line.index("|") for line in said.splitlines() if "|" in line}) == 1  # one zero line
    assert picture.read_text().startswith("<?xml")
    ringloom.refused(*command, "--picture", "curve.jpeg")


def test_what_is_not_worth_measuring_is_not_to_be_measured(ringloom: CommandLine) -> None:
    work = ["--ranks", "8", "--seq", "64k", "--schedules", "ulysses", "--no-overlap"]
    command = ["sensitivity", *work, "--vary", "intra.bandwidth=1e10:4e11"]
    assert ringloom.json(*command)["measure_first"] is None
    said = " ".join(ringloom(*command).split())
    assert "8 ranks of a100-nvlink, transfers and compute one after the other; * not" in said
    assert "No uncalibrated constant changes the time by 0.1% or more." in said
    assert "ulysses is the fastest at every intra.bandwidth from 1e+10 to 4e+11." in said


def test_simulate_says_the_interval_and_what_it_rests_on(ringloom: CommandLine) -> None:
    work = ["--ranks", "8", "--seq", "16k", "--heads", "8", "--hardware", "tpu-v4"]
    document = ringloom.json("simulate", "zigzag", *work)
    low, high = document["interval_s"]
    assert low < document["makespan_s"] < high
    assert document["interval_basis"]["chip"] is None
    said = " ".join(ringloom("simulate", "zigzag", *work).split())
    assert f"based on {document['interval_basis']['words']}" in said
    assert document["uncalibrated"] == ["attention.host", "attention.forward"]


def test_a_file_may_state_the_range_of_a_constant(tmp_path: Path) -> None:
    assert H100.range("attention.host") == (2e-5, 1e-4)
    assert TPU.range("intra.bandwidth") == pytest.approx((45e9 / 1.05, 45e9 * 1.05))
    assert TPU.range("attention.forward") == pytest.approx((0.5 / 1.5, 0.75))
    text = (Path(rl.__file__).parents[1] / "simulator/hardware/presets/h100.toml").read_text()
    for wrong, why in (("[6e-5, 10e-5]", "is not between"), ("[1e-6]", r"not \[low, high\]")):
        file = tmp_path / "wrong.toml"
        file.write_text(text.replace("range = [2e-05, 0.0001]", f"range = {wrong}"))
        with pytest.raises(rl.RingloomError, match=why):
            load(file)


def test_of_a_large_plan_the_constant_that_counts_most_is_known_where_others_may_be_nothing() -> (
    None
):
    assert 0 in H100.range("inter.sm_share")
    large = Plans.of(plan("ring", Workload(seq=2**14, heads=8), 264))
    for calibrated in (True, False):
        ((key, effect),) = spread(large, H100, EVEN, calibrated=calibrated).items()
        assert key in H100.constants
        assert 0 < effect < math.inf
