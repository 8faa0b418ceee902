"""The documentation's example of a new mask, one file: everything works for it."""

import json
import re
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import ringloom as rl
from planner.masks import MASKS
from repository import ROOT
from runtimes.arrays import draw
from runtimes.reference import dense

PAGE = ROOT / "docs" / "how-to" / "add_mask.md"
TEXT = "image:8,24 & window:16,16 | global:1"


def page_file() -> str:
    (text, *_) = re.findall(r"```python\n# image.py\n(.*?)```", PAGE.read_text(), re.S)
    return str(text)


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> rl.Workload:
    """A workload under the mask of the page, which stays known until the test ends."""
    monkeypatch.setitem(MASKS, "image:", rl.Mask)
    monkeypatch.delitem(MASKS, "image:")  # to be forgotten in the end
    module = ModuleType("image")
    monkeypatch.setitem(sys.modules, "image", module)  # dataclasses look there
    exec(page_file(), vars(module))
    return rl.Workload(seq=64, heads=4, kv_heads=2, head_dim=8, mask=TEXT, dtype="float64")


def test_its_region_is_its_expression(work: rl.Workload) -> None:
    image = MASKS["image:"]
    at = range(-3, 12)
    for start in range(0, 12, 3):
        for stop in range(0, 12, 2):
            mask = image(start, stop)  # type: ignore[call-arg]
            pairs = [[mask.pairs((range(i, i + 1),), (range(j, j + 1),)) for j in at] for i in at]
            np.testing.assert_array_equal(mask.allowed(at, at), pairs)


def test_it_is_read_printed_and_kept_in_plan_files(work: rl.Workload, tmp_path: Path) -> None:
    assert str(work.mask) == TEXT
    assert repr(work.mask.left.left).startswith("Image(")  # type: ignore[attr-defined]
    plan = rl.plan("zigzag", work, 4)
    rl.save(plan, str(tmp_path / "plan.json"))
    assert rl.load(str(tmp_path / "plan.json")) == plan
    with pytest.raises(rl.PlanError, match="'image:8': the numbers do not fit image:START,STOP"):
        rl.Workload(seq=64, mask="image:8")
    with pytest.raises(rl.PlanError, match=r"not a mask; masks: .*image:START,STOP"):
        rl.Workload(seq=64, mask="imgae:8,9")


def test_it_is_predicted(work: rl.Workload) -> None:
    result = rl.simulate(rl.plan("zigzag", work, 4, pass_="both"), "h100")
    assert result.makespan > result.bound.seconds > 0


@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_it_runs_exactly(work: rl.Workload, backend: str) -> None:
    pytest.importorskip(backend)
    # Threads, without the time that processes take to start.
    execute = import_module("rank_threads").execute if backend == "torch" else backend
    assert rl.check(rl.plan("zigzag", work, 4, pass_="both"), backend=execute).exact


def test_its_jax_program_is_exact(work: rl.Workload) -> None:
    pytest.importorskip("jax")
    replay, arrays = import_module("jax_in_numpy").replay, draw(work, 0)
    wanted = dense.forward(work, *arrays[:3])[0], *dense.backward(work, *arrays)
    results = replay(rl.plan("zigzag", work, 4, pass_="both"), *arrays)
    for result, right in zip(results, wanted, strict=True):
        np.testing.assert_allclose(result, right, rtol=0, atol=1e-11)


@pytest.mark.parametrize("target", ["torch", "jax"])
def test_programs_compare_with_its_expression(work: rl.Workload, target: str) -> None:
    text = rl.emit(rl.plan("zigzag", work, 4, pass_="both"), target)
    definition = text.partition("def allowed(")[2].partition("def ")[0]
    assert "(j <= i) | ((i >= 8) & (j < 24))" in definition
    assert text.count("allowed(") > 1
    compile(text, target, "exec")


def test_one_file_beside_the_others_is_all_it_takes(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "planner", tmp_path / "planner")
    (tmp_path / "planner" / "masks" / "image.py").write_text(page_file())
    for package in ("ringloom", "simulator", "codegen", "runtimes"):
        (tmp_path / package).symlink_to(ROOT / package)
    program = "from ringloom.cli import main; import sys; sys.exit(main(sys.argv[1:]))"
    options = {"ranks": 4, "seq": 64, "heads": 2, "head-dim": 8, "mask": TEXT}
    words = ["run", "zigzag", "--check", "--json", *(f"--{k}={v}" for k, v in options.items())]
    done = subprocess.run(
        [sys.executable, "-c", program, *words],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["exact"] is True
