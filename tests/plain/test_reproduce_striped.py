"""Striped Attention's TMS and speedups, and rows that nobody has seen."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from command_line import CommandLine
from ringloom.reproduce.fitting import fit, least_squares
from ringloom.reproduce.papers import striped
from ringloom.reproduce.papers.striped import (
    MODELS,
    Mesh,
    chips,
    coarse_tiles,
    pairs,
    speedup,
    theoretical_maximum_speedup,
)

TARGETS = {"A100": 0.020, "TPUv4": 0.025, "TPUv3": 0.010}
HEAD = "hardware,model,model_parallel,sequence_parallel,n_seq,tms,measured_speedup\n"


def test_every_tms_equals_the_paper_to_both_decimals() -> None:
    rows = striped.predict_rows()
    assert len(rows) == 69
    assert [row.name for row in rows if f"{row.tms:.2f}" != f"{row.published_tms:.2f}"] == []


@pytest.mark.parametrize("chip", TARGETS)
def test_speedups_are_predicted_within_the_target(chip: str) -> None:
    fit = striped.as_json(striped.predict_rows())["summary"]["hardware"][chip]
    assert fit["compared"] >= 8
    assert fit["mean_error"] <= TARGETS[chip]
    assert fit["rank_correlation"] > 0.95


def test_rows_left_out_of_the_fit_are_predicted_within_the_target_too() -> None:
    for chip, outcome in striped.fit_chips(striped.predict_rows()).items():
        assert len(outcome.constants) == 3
        assert outcome.leave_one_out <= TARGETS[chip]
        assert outcome.halves <= TARGETS[chip]
        assert outcome.leave_one_out > outcome.mean_error  # blind rows are harder than seen ones


def test_the_shipped_constants_are_those_of_the_fit() -> None:
    for name, outcome in striped.fit_chips(striped.predict_rows()).items():
        assert chips()[name].fitted == pytest.approx(outcome.constants, rel=2e-3)


def test_pairs_on_the_critical_path_are_the_papers() -> None:
    mesh = Mesh(MODELS["1B"], 1, 4, 4096)
    c, p = 1024, 4
    assert pairs("ring", mesh) == c * (c + 1) // 2 + (p - 1) * c * c
    assert pairs("striped", mesh) == p * c * (c + 1) // 2


def test_coarse_tiles_skip_only_what_is_wholly_masked() -> None:
    assert coarse_tiles("striped", 2 * 1536, 2, (512, 512)).live == 2 * 6  # of 9, saving a third
    ring = coarse_tiles("ring", 8192, 2, (2048, 4096))
    assert ring == (4, 4, 2)  # at block 4096 nothing is saved
    assert coarse_tiles("striped", 8192, 2, (2048, 4096)) == (4, 4, 4)


def test_the_skipped_shares_are_the_papers_and_not_half() -> None:
    figures = striped.skipped_tiles()
    assert [round(line.ours, 1) for line in figures.lines] == [33.3, 25, 0, 25]
    assert figures.points
    assert all(line.equal for line in figures.lines if line.published is not None)


def test_work_that_is_skipped_is_shown_with_the_papers_own_rows_alone(
    tmp_path: Path, ringloom: CommandLine
) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(f"{HEAD}A100,1B,1,2,8192,1.22,0.94\n")
    assert "skipped tiles" in ringloom("reproduce", "striped")
    assert "skipped tiles" not in ringloom("reproduce", "striped", "--rows", str(path))


def test_heads_of_100_cost_as_much_as_heads_of_128_where_lanes_are_128_wide() -> None:
    mesh, wide = Mesh(MODELS["3B"], 2, 8, 262144), MODELS["3B"]
    padded = Mesh(replace(wide, head_dim=128), 2, 8, 262144)
    chip = replace(chips()["TPUv4"], projections=0.0)
    assert speedup(mesh, chip) == pytest.approx(speedup(padded, chip))


def test_without_overheads_the_prediction_is_the_tms_of_coarse_tiles() -> None:
    chip = replace(chips()["TPUv4"], tile_q=1, tile_kv=1, visit=0, masked=0, projections=1)
    mesh = Mesh(MODELS["1B"], 2, 4, 64)
    assert speedup(mesh, chip) == pytest.approx(theoretical_maximum_speedup(mesh, 1))


def judge(text: str, path: Path) -> list[str]:
    """The command that judges rows in a file."""
    path.write_text(text)
    return ["reproduce", "striped", "--rows", str(path)]


def test_rows_of_a_file_are_judged(tmp_path: Path, ringloom: CommandLine) -> None:
    text = HEAD + "A100,7B,2,16,524288,,\nTPUv4,3B,8,2,131072,1.40,1.21\n"
    document = ringloom.json(*judge(text, tmp_path / "rows.csv"))
    unseen, seen = document["rows"]
    assert unseen["published_tms"] is None
    assert unseen["measured_speedup"] is None
    assert 1 < unseen["predicted_speedup"] < unseen["tms"] < 2
    assert seen["published_tms"] == 1.40
    assert seen["measured_speedup"] == 1.21
    assert document["summary"]["compared"] == 1
    assert {"hardware", "model", "model_parallel", "sequence_parallel", "n_seq"} <= seen.keys()


def test_rows_may_lack_what_was_published(tmp_path: Path, ringloom: CommandLine) -> None:
    text = "hardware,model,model_parallel,sequence_parallel,n_seq\nTPUv3,1B,4,2,8192\n"
    command = judge(text, tmp_path / "rows.csv")
    (row,) = ringloom.json(*command)["rows"]
    assert row["tms"] == pytest.approx(1.14, abs=0.005)
    assert row["measured_speedup"] is None
    ringloom(*command)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("H100,1B,1,2,8192,,", "unknown hardware 'H100'"),
        ("A100,2B,1,2,8192,,", "unknown model '2B'"),
        ("A100,1B,1,two,8192,,", "sequence_parallel must be a positive integer"),
        ("A100,1B,1,2,0,,", "n_seq must be a positive integer"),
        ("A100,1B,1,2,8192,,fast", "measured_speedup must be a positive number"),
        ("A100,1B,1,100000,8192,,", "sequence_parallel must be at most"),
    ],
)
def test_a_bad_row_is_told_in_one_line(
    row: str, said: str, tmp_path: Path, ringloom: CommandLine
) -> None:
    told = ringloom.refused(*judge(HEAD + row + "\n", tmp_path / "rows.csv"))
    assert said in told
    assert "row 1" in told


def test_rows_are_for_striped_alone(tmp_path: Path, ringloom: CommandLine) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(HEAD)
    assert "--rows" in ringloom.refused("reproduce", "ring", "--rows", str(path))


def test_fit_prints_constants_and_blind_errors(ringloom: CommandLine) -> None:
    constants = ringloom.json("reproduce", "striped", "--fit")["constants"]
    assert constants.keys() == TARGETS.keys()
    assert {"projections", "visit", "masked", "leave_one_out"} <= constants["A100"].keys()
    ringloom.refused("reproduce", "ring", "--fit")
    assert "--csv is only available for commands that print a table" in ringloom.refused(
        "reproduce", "distflash", "--fit", "--csv"
    )


def test_least_squares_finds_the_constants_that_made_the_numbers() -> None:
    random = np.random.default_rng(0)
    parts = random.uniform(1, 2, size=(30, 2, 4))
    truth = np.array([0.5, 2.0, 0.1])

    def model(constants: np.ndarray, rows: np.ndarray) -> np.ndarray:
        times = parts[rows, :, 0] + parts[rows, :, 1:] @ constants
        return times[:, 0] / times[:, 1]

    every = np.arange(30)
    measured = model(truth, every)
    result = least_squares(model, measured, every, np.ones(3))
    assert result == pytest.approx(truth, rel=1e-3)
    assert fit(model, measured, np.ones(3)).leave_one_out < 1e-4
