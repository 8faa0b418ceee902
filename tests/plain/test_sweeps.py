"""Sweeps: the same bytes however often they are killed and wherever they run."""

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet

import ringloom as rl
from repository import ROOT
from ringloom.csv_rows import records
from ringloom.planner.schedules import SCHEDULES, Schedule
from ringloom.sweeps import run, store
from ringloom.sweeps.grid import NamedSchedule, grid_of, outcome, predict, read_grid
from ringloom.sweeps.run import standings
from sampling import NIGHTLY

FILES = ("results.csv", "results.parquet", "summary.svg")
# Head counts that do not divide, and a batch that no rank of an A100 can hold.
GRID = """
ranks = [2, 3]
seq = 96
batch = [1, "16M"]
heads = [4, 6]
kv_heads = 4
head_dim = 16
mask = "causal & window:32"
hardware = ["a100-nvlink", "tpu-v4"]
schedule = ["ring", "ulysses", "usp:ulysses=2"]
"""
POINTS = 48
LARGE = """
ranks = [2, 3, 4, 5, 8]
seq = [256, 300, "1k", "2k", "4k"]
batch = [1, 2]
heads = [12, 24]
kv_heads = [1, 2, 3, 4, 5]
head_dim = 16
hardware = "a100-nvlink"
schedule = ["ring", "zigzag", "ulysses", "usp:ulysses=2"]
"""


def contents(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in FILES}


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("grid") / "grid.toml"
    path.write_text(GRID)
    return path


@pytest.fixture(scope="module")
def whole(grid: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, run.Sweep]:
    """A sweep that nothing interrupts."""
    folder = tmp_path_factory.mktemp("whole")
    return folder, rl.sweep(grid, folder, jobs=1)


# ---- what comes out


def test_rows_stand_in_the_order_of_the_grid_and_say_what_simulate_says(
    whole: tuple[Path, run.Sweep], grid: Path
) -> None:
    _, result = whole
    axes = [list(axis) for axis in read_grid(grid).axes.values()]
    assert [tuple(row[key] for key in result.keys) for row in result.rows] == list(product(*axes))
    refused = []
    for row in result.rows:
        names = ("seq", "batch", "heads", "kv_heads", "head_dim", "mask")
        try:
            work = rl.Workload(**{name: row[name] for name in names})
            plan = rl.plan(row["schedule"], work, row["ranks"])
        except rl.PlanError as error:
            refused.append((row.get("reason"), str(error)))
            continue
        said = rl.simulate(plan, row["hardware"]).as_row()
        if said["peak_bytes"] > rl.hardware(row["hardware"])["memory.capacity"]:
            assert row["reason"].startswith("needs ")
        else:
            assert {name: row[name] for name in said} == said
    assert all(reason == said for reason, said in refused)
    kinds = Counter(row.get("reason", "")[:5] for row in result.rows)
    assert len(kinds) >= 3, kinds
    assert sum(kinds.values()) == result.computed == POINTS


def test_reasons_are_those_of_compare(whole: tuple[Path, run.Sweep]) -> None:
    _, result = whole
    refused = [row for row in result.refused if row["heads"] == 4]
    assert refused
    for row in refused[:4]:
        sizes = {name: row[name] for name in ("seq", "batch", "heads", "head_dim", "mask")}
        names = ["ring", row["schedule"]]
        with pytest.raises(rl.PlanError, match=re.escape(row["reason"])):
            rl.compare(rl.Workload(**sizes), row["ranks"], row["hardware"], names)


def stated(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if value is not None}


def test_both_files_hold_the_rows(whole: tuple[Path, run.Sweep]) -> None:
    folder, result = whole
    read = parquet.read_table(folder / "results.parquet").to_pylist()
    assert [stated(row) for row in read] == [stated(row) for row in result.rows]
    written = records(folder / "results.csv")
    assert list(written[0]) == list(read[0])
    shown = [{k: "" if v is None else str(v) for k, v in row.items()} for row in read]
    for row, other in zip(written, shown, strict=True):
        assert row.keys() == other.keys()
        for name in ("seq", "mask", "schedule", "max_bytes_sent", "reason"):
            assert row[name] == other[name]
        assert not other["makespan_s"] or float(row["makespan_s"]) == float(other["makespan_s"])


def test_all_schedules_are_the_fastest_where_there_is_nothing_to_compute() -> None:
    about = {"hardware": "h100", "makespan_s": 0.0}
    rows = [about | {"schedule": name} for name in ("ring", "zigzag")]
    assert [one.ratios for one in standings(rows, ("hardware", "schedule"))] == [(1.0,), (1.0,)]


def test_standings_count_the_fastest_and_those_that_cannot_run() -> None:
    rows: list[dict[str, Any]] = [
        {"seq": seq, "hardware": "h", "schedule": name, **rest}
        for seq, name, rest in (
            (1, "a", {"makespan_s": 1.0}),
            (1, "b", {"makespan_s": 1.5}),
            (2, "a", {"makespan_s": 4.0}),
            (2, "b", {"makespan_s": 2.0}),
            (3, "a", {"makespan_s": 1.0}),
            (3, "b", {"reason": "too large"}),
            (4, "a", {"reason": "too large"}),
            (4, "b", {"reason": "too large"}),
        )
    ]
    a, b = standings(rows, ("seq", "hardware", "schedule"))
    assert (a.ratios, a.cells, a.refused) == ((1.0, 1.0, 2.0), 3, 1)
    assert (b.ratios, b.cells, b.refused) == ((1.0, 1.5), 3, 2)
    assert [a.within(1), a.within(2), b.within(1.5)] == [2 / 3, 1.0, 2 / 3]


# ---- interruptions


class Killed(BaseException):
    """Ends a sweep as SIGKILL does: nothing catches it."""


@pytest.mark.parametrize("half", [False, True], ids=["whole", "half"])
def test_a_sweep_that_dies_at_any_write_ends_with_the_same_files(
    half: bool,
    grid: Path,
    whole: tuple[Path, run.Sweep],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A line is on disk when a sweep dies, or only the first half of it."""
    calls, last, computed = 0, random.Random(half).randint(1, 3), 0
    original, path = os.fsync, tmp_path / store.NAME

    def dying(file: int) -> None:
        nonlocal calls
        calls += 1
        if calls == last:
            if half:
                line = path.read_bytes().rstrip(b"\n").rpartition(b"\n")[2]
                os.ftruncate(file, path.stat().st_size - 1 - len(line) // 2)
            raise Killed
        original(file)

    monkeypatch.setattr(os, "fsync", dying)
    for run_number in range(40):
        calls, jobs = 0, 1 + run_number % 2
        monkeypatch.setattr(run, "POINTS_PER_WORKER", 8 // jobs + run_number)
        before = batches(tmp_path)
        try:
            result = rl.sweep(grid, tmp_path, jobs=1)
        except Killed:
            assert batches(tmp_path) >= before
            last += 1
            continue
        computed = result.computed
        break
    assert run_number > 1
    assert computed < POINTS
    assert contents(tmp_path) == contents(whole[0])
    assert points_stored_twice(tmp_path) == []


def test_ctrl_c_is_for_the_process_that_sweeps_and_shows_no_traceback_of_its_workers(
    grid: Path, whole: tuple[Path, run.Sweep], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*point: Any) -> dict[str, Any]:
        os.kill(os.getpid(), signal.SIGINT)
        return outcome(*point)

    monkeypatch.setattr(run, "outcome", interrupted)
    rl.sweep(grid, tmp_path, jobs=2)
    assert contents(tmp_path) == contents(whole[0])


def points_stored_twice(folder: Path) -> list[str]:
    _, *lines = (folder / store.NAME).read_text().splitlines()
    counts = Counter(point for line in lines for point in json.loads(line.partition(" ")[2]))
    assert len(counts) > 1
    return [point for point, count in counts.items() if count > 1]


def kill_and_resume(grid: Path, folder: Path, kills: int, jobs: int) -> dict[str, Any]:
    """Kill a sweep so often, each time at a random moment behind a random batch; then let it end.

    Returns what the last run says.
    """
    chance = random.Random(jobs)
    points = len(read_grid(grid))
    command = [sys.executable, "-m", "ringloom", "sweep", str(grid), "-o", str(folder)]
    command += ["--json", "--jobs", str(jobs)]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}
    for kill in range(kills):
        before = batches(folder)
        more = max(1, (points // (4 * jobs) - before) // (kills - kill + 1))
        with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as process:
            while batches(folder) < before + more and process.poll() is None:
                time.sleep(0.002)
            time.sleep(chance.uniform(0, 0.005))
            process.kill()
        assert process.returncode == -9, "it ended before it was killed"
    last = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    return dict(json.loads(last.stdout))


def batches(folder: Path) -> int:
    path = folder / store.NAME
    return max(0, path.read_bytes().count(b"\n") - 1) if path.exists() else 0


@pytest.mark.skipif(not NIGHTLY, reason="minutes: 2,000 points, killed five times")
def test_two_thousand_points_killed_five_times_end_with_the_same_files(tmp_path: Path) -> None:
    (tmp_path / "grid.toml").write_text(LARGE)
    assert len(read_grid(tmp_path / "grid.toml")) == 2000
    rl.sweep(tmp_path / "grid.toml", tmp_path / "whole", jobs=2)
    said = kill_and_resume(tmp_path / "grid.toml", tmp_path / "killed", kills=5, jobs=2)
    assert said["points"] == 2000
    assert 0 < said["computed"] < 1000
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")
    assert points_stored_twice(tmp_path / "killed") == []


# ---- the store


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "other"])
def test_a_damaged_batch_is_noticed_and_computed_again_once_it_is_deleted(
    damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "POINTS_PER_WORKER", 1)
    grid = {"ranks": 2, "seq": 64, "hardware": "h100", "schedule": ["ring", "zigzag"]}
    rl.sweep(grid, tmp_path, jobs=1)
    path, whole = tmp_path / store.NAME, contents(tmp_path)
    head, first, second = path.read_bytes().splitlines(keepends=True)
    other = rl.sweep(grid | {"seq": 32}, tmp_path / "other", jobs=1)
    assert other.computed == 2
    changed = {
        "cut": first[:-9] + b"\n",
        "flip": first.replace(b"makespan_s", b"makespam_s", 1),
        "empty": b"\n",
        "other": (tmp_path / "other" / store.NAME).read_bytes().splitlines(keepends=True)[1],
    }
    path.write_bytes(head + changed[damage] + second)
    with pytest.raises(
        rl.RingloomError, match=r"line 2 of .*jsonl is damaged: delete it"
    ) as caught:
        rl.sweep(grid, tmp_path, jobs=1)
    assert "\n" not in str(caught.value)
    path.write_bytes(head + second)
    assert rl.sweep(grid, tmp_path, jobs=1).computed == 1
    assert path.read_bytes().startswith(head + second)
    assert contents(tmp_path) == whole


def test_a_folder_belongs_to_one_grid_its_files_and_one_process(tmp_path: Path) -> None:
    text = (ROOT / "simulator/hardware/presets/h100.toml").read_text()
    (tmp_path / "here.toml").write_text(text)
    (tmp_path / "links.json").write_text(json.dumps({"links": [[0, 1, 1e9]]}))
    grid = {"ranks": 2, "seq": 64, "hardware": str(tmp_path / "here.toml"), "schedule": "ring"}
    grid["scenario"] = {"slow": {"topology": str(tmp_path / "links.json"), "speeds": {"1": 0.5}}}
    assert rl.sweep(grid, tmp_path / "out", jobs=1).computed == 1
    assert rl.sweep(grid, tmp_path / "out", jobs=1).computed == 0
    with pytest.raises(rl.RingloomError, match="another grid"):
        rl.sweep(grid | {"seq": 65}, tmp_path / "out", jobs=1)
    (tmp_path / "links.json").write_text(json.dumps({"links": [[0, 1, 2e9]]}))
    with pytest.raises(rl.RingloomError, match="another grid"):
        rl.sweep(grid, tmp_path / "out", jobs=1)
    (tmp_path / "links.json").write_text(json.dumps({"links": [[0, 1, 1e9]]}))
    (tmp_path / "here.toml").write_text(text.replace("80e9", "81e9"))
    with pytest.raises(rl.RingloomError, match="another grid"):
        rl.sweep(grid, tmp_path / "out", jobs=1)
    (tmp_path / "here.toml").write_text(text)
    with (
        store.open_store(tmp_path / "out", grid_of(grid).digest),
        pytest.raises(rl.RingloomError, match="another process"),
    ):
        rl.sweep(grid, tmp_path / "out", jobs=1)


def test_grids_of_masks_that_differ_in_an_entry_nobody_prints_are_two(tmp_path: Path) -> None:
    file = tmp_path / "lengths.json"
    grid = {"ranks": 2, "seq": 400, "hardware": "h100", "schedule": "ring"}
    digests = set()
    for last in ([3, 5], [4, 4]):
        file.write_text(" ".join(map(str, [8] * 49 + last)))
        digests.add(grid_of(grid | {"mask": f"documents@{file}"}).digest)
    assert len(digests) == 2


# ---- workers


def test_dask_gives_the_same_files(
    grid: Path, whole: tuple[Path, run.Sweep], tmp_path: Path
) -> None:
    from distributed import LocalCluster

    local = {"n_workers": 2, "threads_per_worker": 1, "processes": NIGHTLY}
    with LocalCluster(dashboard_address=None, **local) as cluster:
        said = rl.sweep(grid, tmp_path, backend="dask", address=cluster.scheduler_address)
    assert said.computed == POINTS
    assert contents(tmp_path) == contents(whole[0])


@pytest.mark.skipif(not NIGHTLY, reason="starting Ray takes long: only in make test-nightly")
def test_ray_gives_the_same_files(
    grid: Path, whole: tuple[Path, run.Sweep], tmp_path: Path
) -> None:
    pytest.importorskip("ray", reason="ray is not installed: pip install 'ringloom[ray]'")
    command = [sys.executable, "-m", "ringloom", "sweep", str(grid), "-o", str(tmp_path)]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([*command, "--backend", "ray"], env=env, check=True, capture_output=True)
    assert contents(tmp_path) == contents(whole[0])


def deadly(work: rl.Workload, ranks: int, pass_: str) -> rl.Plan:
    """A schedule that ends the process in which it plans."""
    os._exit(1)


def test_a_worker_that_dies_is_reported_and_what_is_stored_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SCHEDULES, "deadly", Schedule("deadly", deadly, "", "", ""))
    monkeypatch.setattr(run, "POINTS_PER_WORKER", 1)
    grid = {"schedule": ["ring", "deadly"], "ranks": [1, 2, 3, 4], "seq": 64, "hardware": "h100"}
    with pytest.raises(rl.RingloomError, match="a worker died on one of the points 4 to 5"):
        rl.sweep(grid, tmp_path, jobs=2)
    assert batches(tmp_path) == 2
    assert not (tmp_path / "results.csv").exists()


def test_a_worker_of_another_version_is_refused(grid: Path) -> None:
    with pytest.raises(rl.RingloomError, match=r"has ringloom .*, this machine has 0\.0\.1"):
        outcome(*read_grid(grid).point(0), "0.0.1")


def test_a_worker_learns_a_schedule_that_it_does_not_know(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = SCHEDULES["zigzag"]
    monkeypatch.delitem(SCHEDULES, "zigzag")
    sizes = {"ranks": 2, "seq": 64, "hardware": rl.hardware("h100")}
    assert "makespan_s" in predict(NamedSchedule("zigzag", recipe), **sizes)


def test_an_address_goes_with_a_cluster_only(tmp_path: Path, grid: Path) -> None:
    with pytest.raises(rl.RingloomError, match="loky takes no address"):
        rl.sweep(grid, tmp_path, address="tcp://node0:8786")
