"""Figures for print: the same bytes always, and what they show is what the plans say."""

import os
import re
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pytest

import ringloom as rl
from command_line import CommandLine
from ringloom.cli.papers import figures
from ringloom.cli.papers.figures import FIGURES
from ringloom.figures import rounds, speedups, workers
from ringloom.figures.sheet import style, write
from ringloom.reproduce.papers.striped import predict_rows
from ringloom.views.grids import cells, grid


def files(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(folder.iterdir())}


ELSEWHERE = """
import sys
from dataclasses import replace
from itertools import pairwise
from ringloom.cli import main
from ringloom.cli.papers import figures
assert main(["figures", "-o", sys.argv[1], "--format", "svg"]) == 0
figures.FIGURES = {"eight_workers": figures.FIGURES["eight_workers"]}
assert main(["figures", "-o", sys.argv[1], "--format", "png"]) == 0
"""


def test_bytes_depend_on_neither_process_nor_settings(
    tmp_path: Path, ringloom: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    to = ["-o", str(tmp_path / "here")]
    with matplotlib.rc_context({"font.size": 20, "svg.hashsalt": "other", "lines.linewidth": 9}):
        said = ringloom.json("figures", *to, "--format", "svg")["files"]
        monkeypatch.setattr(figures, "FIGURES", {"eight_workers": FIGURES["eight_workers"]})
        assert len(ringloom.json("figures", *to)["files"]) == 2
    command = [sys.executable, "-c", ELSEWHERE, str(tmp_path / "there")]
    env = {**os.environ, "PYTHONHASHSEED": "7", "SOURCE_DATE_EPOCH": "1", "TZ": "Asia/Tokyo"}
    subprocess.run(command, check=True, env=env, capture_output=True)
    here, other = files(tmp_path / "here"), files(tmp_path / "there")
    assert sorted(here) == sorted(["eight_workers.png", *(f"{name}.svg" for name in FIGURES)])
    assert len(said) == len(FIGURES)
    assert {name for name in here if here[name] != other[name]} == set()
    assert here.keys() == other.keys()
    assert not any(re.search(rb"<dc:date>|tIME|Matplotlib v", content) for content in here.values())


@pytest.mark.parametrize(
    ("schedule", "pairs"),
    [("ring", [[10, 10, 10, 10], [0, 16, 16, 16], [0, 0, 16, 16], [0, 0, 0, 16]]),
     ("striped", [[10, 10, 10, 10], [6, 10, 10, 10], [6, 6, 10, 10], [6, 6, 6, 10]])],
)  # fmt: skip
def test_tiles_per_round_are_those_of_striped_attention(
    schedule: str, pairs: list[list[int]]
) -> None:
    facts = rounds.facts(schedule)
    assert facts.shares.shape == (16, 16)
    assert set(np.unique(facts.shares)) == {0.0, 1.0}
    for number, expected in enumerate(pairs):
        now = facts.step[0] == number
        got = [int(facts.pairs[now & (facts.rank[0] == rank)].sum()) for rank in range(4)]
        assert got == expected


def test_tokens_are_named_in_layout_order() -> None:
    names = {name: rounds.tokens(name) for name in rounds.SCHEDULES}
    assert names["ring"] == [str(token) for token in range(16)]
    assert names["striped"] == [str(4 * k + rank) for rank in range(4) for k in range(4)]


def test_grids_hold_every_tile_once_and_idle_cells_are_counted() -> None:
    with style():
        drawn = workers.workers()
    titles = [axes.get_title() for axes in drawn.axes]
    assert titles == [
        "ring: 8 rounds, 28 of 64 cells idle",
        "balanced: 5 rounds, 4 of 40 cells idle",
    ]
    for axes, name in zip(drawn.axes, workers.SCHEDULES, strict=True):
        said = sorted(text.get_text() for text in axes.texts)
        assert said == sorted(f"{q},{kv}" for q in range(8) for kv in range(q + 1))
        plan = workers.grid_plan(name)
        assert len(said) == len(list(cells(plan)))
        table = "".join(str(cell) for c in grid(plan, 120).columns for cell in c._cells)
        assert all(f"{q},{kv}" in table for q in range(8) for kv in range(q + 1))


def test_points_are_the_published_ones_and_curves_ours() -> None:
    with style():
        drawn = speedups.speedups()
    points, curves = set(), set()
    for axes in (a for a in drawn.axes if a.get_title()):
        for line in axes.lines:
            if len(line.get_xdata()) and line.get_label().startswith(tuple("0123456789")):
                points |= {(axes.get_title(), *p) for p in line.get_xydata().tolist()}
            elif line.get_label().startswith("_child"):
                curves |= {(axes.get_title(), *p) for p in line.get_xydata().tolist()}
    for row in predict_rows():
        title = f"{row.hardware}, {row.model}"
        assert (title, row.n_seq, row.predicted_speedup) in curves
        if row.measured_speedup:
            assert (title, row.n_seq, row.measured_speedup) in points
    assert len(points) <= len(predict_rows())


def test_a_folder_that_cannot_be_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(rl.RingloomError, match="cannot write"):
        write(workers.workers, "workers", tmp_path / "file", ("svg",))


def test_a_mask_without_pairs_is_drawn_as_nothing(tmp_path: Path, ringloom: CommandLine) -> None:
    work = ["--ranks", "2", "--seq", "64", "--heads", "2", "--mask", "global:0"]
    to = ["--schedules", "ring", "--format", "svg", "-o", str(tmp_path)]
    drawn = ringloom.json("figures", *work, *to)["files"]
    names = {Path(file).name.split("_")[0] for file in drawn}
    assert names == {"comparison.svg", "ring", "ring-blocks"}


def test_ones_own_case_is_drawn_too(tmp_path: Path, ringloom: CommandLine) -> None:
    case = ["--ranks", "4", "--seq", "1k", "--heads", "4", "--schedules", "ring,usp:ulysses=2"]
    drawn = ringloom.json("figures", *case, "-o", str(tmp_path), "--format", "svg")["files"]
    kinds = ("timeline", "load", "memory", "traffic")
    names = {f"{name}_{kind}.svg" for name in ("ring", "usp-ulysses2") for kind in kinds}
    assert set(files(tmp_path)) == names | {"comparison.svg"}
    assert len(drawn) == 9
    ringloom.refused("figures", "--ranks", "4")
    for option in (["--mask", "full"], ["--straggler", "0=0.5"], ["--schedules", "burst"]):
        assert f"omit {option[0]}" in ringloom.refused("figures", *option)


@pytest.mark.parametrize(
    ("ranks", "labels"), [(1, "sent (B)"), (2, "sent (KiB)"), (9, "sent (KiB)")]
)
def test_ranks_are_whole_numbers_and_bytes_in_a_unit_that_fits(ranks: int, labels: str) -> None:
    one = rl.simulate(rl.plan("ring", rl.Workload(seq=64, heads=2), ranks), "h100")
    load, traffic = one.plot_load(), one.plot_traffic()
    for axis in (load.xaxis, traffic.xaxis, traffic.yaxis):
        assert {float(tick).is_integer() for tick in axis.get_majorticklocs()} == {True}
    scale = traffic.images[0].colorbar
    assert (scale.ax.get_ylabel(), scale.vmin) == (labels, 0)
    assert one.plot_memory().get_ylabel() == "memory (KiB)"
    plt.close("all")


def test_names_of_several_lines_leave_room_for_each_other() -> None:
    long = "allgather:layout=contiguous:node=4:keep=1"
    names = [long, "llama3:stride=4:layout=contiguous", *("ring", "zigzag", "striped", "burst") * 2]
    work = rl.Workload(seq=4096, heads=8, mask=rl.Causal())
    (case,) = rl.compare(work, 8, "h100", ["ring"]).cases
    cases = tuple(replace(case, row=replace(case.row, schedule=name)) for name in names)
    axes = replace(rl.compare(work, 8, "h100", ["ring"]), cases=cases).plot()
    axes.figure.canvas.draw()
    boxes = [label.get_window_extent() for label in axes.get_yticklabels()]
    assert len(boxes) == len(names)
    assert not any(a.overlaps(b) for a, b in pairwise(boxes))
