"""Plan files of searches are read, rebuilt, simulated, run, emitted and drawn as others are."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ringloom as rl
from ringloom.cli import main
from ringloom.planner.verify import verify_pair

Capture = pytest.CaptureFixture[str]
WORK = rl.Workload(
    seq=240,
    heads=4,
    kv_heads=2,
    head_dim=4,
    mask=rl.Causal() & rl.Documents((100, 9, 60, 4, 67)),
    dtype="float64",
)
WAY = "found:layout=pieces:grain=30:rows=edges:slices=1-1:own=1"
RECIPES = WAY, f"{WAY}:keep=Q+KV+OUT"
OPTIONS = "--ranks 3 --seq 240 --heads 4 --kv-heads 2 --head-dim 4 --dtype float64 --hardware h100"


@pytest.fixture(scope="module")
def plans() -> rl.Plans:
    """A pair that no schedule makes."""
    return verify_pair(
        rl.rebuild(RECIPES[0], WORK, 3, "h100"),
        rl.rebuild(RECIPES[1], WORK, 3, "h100", pass_="backward"),
    )


@pytest.fixture
def file(plans: rl.Plans, tmp_path: Path) -> str:
    path = tmp_path / "plan.json"
    rl.save(plans, path)
    return str(path)


@pytest.fixture
def said(capsys: Capture) -> Callable[..., Any]:
    """Runs a command that succeeds; returns the JSON object that it prints."""

    def run(*words: str) -> Any:
        assert main([*words, "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    return run


def test_a_file_keeps_the_recipes_and_they_rebuild_its_plans(plans: rl.Plans, file: str) -> None:
    forward, backward = loaded = rl.load(file)
    assert loaded == plans
    assert (forward.name, backward.name) == RECIPES
    assert rl.rebuild(forward.name, forward.workload, forward.ranks, "h100") == forward
    again = rl.rebuild(backward.name, WORK, 3, "h100", pass_="backward")
    assert again == backward


def test_the_command_saves_what_rebuild_makes_of_its_recipes(
    tmp_path: Path, said: Callable[..., Any]
) -> None:
    file = str(tmp_path / "plan.json.gz")
    given = [*OPTIONS.split(), "--mask", str(WORK.mask), "--pass", "both", "--budget", "12"]
    document = said("search", *given, "-o", file)
    saved = rl.load(file)
    assert isinstance(saved, rl.Plans)
    assert saved.workload == WORK
    assert [plan.name for plan in saved] == document["recipes"]
    for plan in saved:
        assert rl.rebuild(plan.name, WORK, 3, "h100", pass_=plan.pass_) == plan
    predicted = said("simulate", file, "--hardware", "h100")
    assert predicted["makespan_s"] == pytest.approx(document["makespan_s"])


def test_commands_take_the_file(file: str, plans: rl.Plans, said: Callable[..., Any]) -> None:
    assert [one["name"] for one in said("plan", file)["plans"]] == [*RECIPES]
    predicted = said("simulate", file, "--hardware", "h100")
    assert predicted["makespan_s"] == pytest.approx(rl.simulate(plans, "h100").makespan)
    assert said("run", file, "--check")["exact"]


def test_a_recipe_without_a_machine_is_no_schedule(capsys: Capture) -> None:
    assert main(["plan", WAY, "--ranks", "3", "--seq", "240"]) == 2
    assert "rl.rebuild(recipe, work, ranks, hardware)" in capsys.readouterr().err


@pytest.mark.parametrize("target", ["torch", "jax"])
def test_a_program_is_emitted_from_the_file(
    target: str, file: str, tmp_path: Path, said: Callable[..., Any]
) -> None:
    program = tmp_path / "attention.py"
    assert said("emit", target, file, "-o", str(program))["lines"] > 100
    text = program.read_text()
    assert text == rl.emit(rl.load(file), target, command=f"ringloom emit {target} plan.json")
    assert "found:layout=pieces" in text


def test_a_report_draws_the_plan_of_the_file_beside_schedules(
    file: str, tmp_path: Path, said: Callable[..., Any], capsys: Capture
) -> None:
    pytest.importorskip("bokeh")
    page = tmp_path / "report.html"
    chosen = "--hardware", "h100", "--schedules", "zigzag"
    rows = said("report", file, *chosen, "-o", str(page))["rows"]
    assert {row["schedule"]: row["added"] for row in rows} == {
        " / ".join(RECIPES): True,
        "zigzag": False,
    }
    assert "grain=30" in page.read_text()
    assert main(["report", file, "--seq", "4k", "-o", str(page)]) == 2
    assert "already contains the workload: omit --seq" in capsys.readouterr().err
