"""The documentation's examples of a new schedule and a new mask: everything works for them."""

import re
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from pages import blocks

import ringloom as rl
from dense_attention import assert_dense
from repository import ROOT
from ringloom.planner.loops import recover
from ringloom.planner.masks import MASKS
from ringloom.runtimes.arrays import draw

PAGES = ROOT / "docs" / "how-to"
SIZES = {"heads": 4, "kv_heads": 2, "head_dim": 8, "dtype": "float64"}
TEXT = "image:8,24 & window:16,16 | global:1"
Made = Callable[..., rl.Plans]  # of ranks: plans of both passes


def run_file(name: str, page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Executes the file that a page shows, as the module of its name."""
    (text,) = (b.text for b in blocks(PAGES / page) if b.file == f"{name}.py")
    module = ModuleType(name)
    monkeypatch.setitem(sys.modules, name, module)  # dataclasses look there
    exec(text, vars(module))


@pytest.fixture
def visiting(monkeypatch: pytest.MonkeyPatch) -> Made:
    """The schedule of its page, which stays known until the test ends."""
    monkeypatch.setitem(rl.SCHEDULES, "visiting", rl.SCHEDULES["ring"])
    monkeypatch.delitem(rl.SCHEDULES, "visiting")  # to be forgotten in the end
    run_file("visiting", "add_schedule.md", monkeypatch)
    return lambda n: rl.plan("visiting", rl.Workload(16 * n, **SIZES), n, pass_="both")


@pytest.fixture
def image(monkeypatch: pytest.MonkeyPatch) -> Made:
    """Zigzag under the mask of its page, which stays known until the test ends."""
    monkeypatch.setitem(MASKS, "image:", rl.Mask)
    monkeypatch.delitem(MASKS, "image:")  # to be forgotten in the end
    run_file("image", "add_mask.md", monkeypatch)
    return lambda n: rl.plan("zigzag", rl.Workload(64, mask=TEXT, **SIZES), n, pass_="both")


@pytest.fixture(params=["visiting", "image"])
def made(request: pytest.FixtureRequest) -> Made:
    return request.getfixturevalue(request.param)  # type: ignore[no-any-return]


@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_it_runs_exactly(made: Made, backend: str) -> None:
    pytest.importorskip(backend)
    # Threads, without the time that processes take to start.
    execute = import_module("rank_threads").execute if backend == "torch" else backend
    assert rl.check(made(4), backend=execute).exact


def test_its_jax_program_is_exact(made: Made) -> None:
    pytest.importorskip("jax")
    plans = made(4)
    arrays = draw(plans.workload, 0)
    results = import_module("jax_in_numpy").replay(plans, *arrays)
    assert_dense(plans.workload, arrays, results)


def test_it_is_predicted_and_kept_in_plan_files(made: Made, tmp_path: Path) -> None:
    result = rl.simulate(made(4), "h100")
    assert result.makespan > result.bound.seconds > 0
    rl.save(made(4), str(tmp_path / "plan.json"))
    assert rl.load(str(tmp_path / "plan.json")) == made(4)


def test_a_schedule_is_registered_with_what_is_said_of_it(visiting: Made) -> None:
    row, page = rl.SCHEDULES["visiting"], (PAGES / "add_schedule.md").read_text()
    assert (row.travels, row.paper, row.parameters) == ("Q, OUT", "TokenRing", {"layout": "zigzag"})
    imported = set(re.findall(r"^(?:import|from) (\w+)", page, re.M))
    assert imported <= {"numpy", "ringloom", "visiting", "dataclasses"}


def test_a_schedule_is_regular_however_many_ranks(visiting: Made) -> None:
    few, many = ([len(recover(one).statements) for one in visiting(n)] for n in (8, 16))
    assert few == many
    assert max(few) <= 12
    for target in ("torch", "jax"):
        assert "(regular)" in rl.emit(visiting(8), target).split('"""')[1]


def test_the_region_of_a_mask_is_its_expression(image: Made) -> None:
    at = range(-3, 12)
    for start in range(0, 12, 5):
        for stop in range(0, 12, 4):
            mask = MASKS["image:"](start, stop)  # type: ignore[call-arg]
            pairs = [[mask.pairs((range(i, i + 1),), (range(j, j + 1),)) for j in at] for i in at]
            np.testing.assert_array_equal(mask.allowed(at, at), pairs)


def test_a_mask_is_read_and_printed(image: Made) -> None:
    mask = image(4).workload.mask
    assert str(mask) == TEXT
    assert repr(mask.left.left).startswith("Image(")  # type: ignore[attr-defined]
    with pytest.raises(rl.PlanError, match="'image:8': the numbers do not fit image:START,STOP"):
        rl.Workload(seq=64, mask="image:8")
    with pytest.raises(rl.PlanError, match=r"not a mask; masks: .*image:START,STOP"):
        rl.Workload(seq=64, mask="imgae:8,9")


@pytest.mark.parametrize("target", ["torch", "jax"])
def test_programs_compare_with_the_expression_of_a_mask(image: Made, target: str) -> None:
    text = rl.emit(image(4), target)
    definition = text.partition("def allowed(")[2].partition("def ")[0]
    assert "(j <= i) | (i >= 8) & (j < 24)" in definition
    assert text.count("allowed(") > 1
