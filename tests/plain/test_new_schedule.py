"""The documentation's example of a new schedule, one file and one row: everything works for it."""

import re
from dataclasses import replace
from importlib import import_module
from types import ModuleType

import numpy as np
import pytest

import ringloom as rl
from planner.loops import recover
from repository import ROOT
from runtimes.arrays import draw
from runtimes.reference import dense
from runtimes.validation import check

PAGE = ROOT / "docs" / "how-to" / "add_schedule.md"
WORK = rl.Workload(seq=128, heads=4, kv_heads=2, head_dim=8, dtype="float64")


@pytest.fixture
def visiting(monkeypatch: pytest.MonkeyPatch) -> str:
    """The schedule of the page, registered."""
    (text, *_) = re.findall(r"```python\n(# visiting.py\n.*?)```", PAGE.read_text(), re.S)
    monkeypatch.setitem(rl.SCHEDULES, "visiting", rl.SCHEDULES["ring"])  # undone in the end
    exec(text, vars(ModuleType("visiting")))
    return "visiting"


def test_a_decorator_registers_it_with_what_is_said_of_it(visiting: str) -> None:
    row = rl.SCHEDULES[visiting]
    assert (row.travels, row.paper, row.parameters) == ("Q, OUT", "TokenRing", {"layout": "zigzag"})
    assert set(re.findall(r"^(?:import|from) (\w+)", PAGE.read_text(), re.M)) <= {
        *("numpy", "ringloom", "visiting", "dataclasses"),
    }


def test_it_is_regular_however_many_ranks(visiting: str) -> None:
    for pass_ in ("forward", "backward"):
        loops = [
            recover(rl.plan(visiting, replace(WORK, seq=8 * n, kv_seq=8 * n), n, pass_=pass_))  # type: ignore[call-overload]
            for n in (8, 16)
        ]
        assert len(loops[0].statements) == len(loops[1].statements) <= 12


def test_it_is_predicted(visiting: str) -> None:
    plans = rl.plan(
        visiting, replace(WORK, seq=2**16, kv_seq=2**16, dtype="bfloat16"), 8, pass_="both"
    )
    result = rl.simulate(plans, "h100")
    assert result.makespan > result.bound.seconds > 0


@pytest.mark.parametrize("target", ["torch", "jax"])
def test_it_is_emitted_as_loops(visiting: str, target: str) -> None:
    text = rl.emit(rl.plan(visiting, WORK, 8, pass_="both"), target)
    assert "(regular)" in text.split('"""')[1]
    compile(text, target, "exec")


@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_it_runs_exactly(visiting: str, backend: str) -> None:
    pytest.importorskip(backend)
    # Threads, without the time that processes take to start.
    execute = import_module("rank_threads").execute if backend == "torch" else backend
    assert check(rl.plan(visiting, WORK, 4, pass_="both"), backend=execute).exact


def test_its_jax_program_is_exact(visiting: str) -> None:
    pytest.importorskip("jax")
    replay, arrays = import_module("jax_in_numpy").replay, draw(WORK, 0)
    wanted = dense.forward(WORK, *arrays[:3])[0], *dense.backward(WORK, *arrays)
    results = replay(rl.plan(visiting, WORK, 4, pass_="both"), *arrays)
    for result, right in zip(results, wanted, strict=True):
        np.testing.assert_allclose(result, right, rtol=0, atol=1e-11)
