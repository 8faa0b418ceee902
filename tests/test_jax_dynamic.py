"""Emitted JAX programs whose mask is an argument: one file and one compilation for every batch."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from codegen import emit
from codegen.emitting import save_tables, tables
from jax_devices import Mesh, jax
from planner.errors import PlanError
from planner.masks import Blocks, Causal, Documents, Full, Mask, Window
from planner.planning import plan
from planner.workload import Workload
from runtimes import dense
from runtimes.arrays import Array, draw

WORK = Workload(37, heads=4, kv_heads=2, head_dim=3, mask=Full(), dtype="float64")


def emitted(schedule: str, work: Workload, ranks: int) -> ModuleType:
    module = ModuleType("emitted")
    exec(emit(plan(schedule, work, ranks, pass_="both"), "jax", dynamic=True), module.__dict__)
    return module


def mesh_of(ranks: int) -> Mesh:
    return Mesh(np.array(jax.devices()[:ranks]), ("sp",))


def compiled(module: ModuleType, calls: list[int]) -> Callable[..., Any]:
    """out, dq, dk, dv as one compiled function; `calls` grows whenever it is traced."""

    def both(q: Array, k: Array, v: Array, dout: Array, tables: dict[str, Array]) -> Any:
        calls.append(1)

        def attend(q: Array, k: Array, v: Array) -> Any:
            return module.attention(q, k, v, tables, mesh=mesh_of(module.P))

        out, pull_back = jax.vjp(attend, q, k, v)
        return out, *pull_back(dout)

    return jax.jit(both)


def errors(module: ModuleType, both: Callable[..., Any], work: Workload, seed: int) -> list[float]:
    """Largest errors of out and of the gradients under the workload's mask."""
    inputs = draw(work, seed)
    sides = False, True, True, False
    placed = [
        np.concatenate([module.shard(x, r, kv=kv) for r in range(module.P)], axis=2)
        for x, kv in zip(inputs, sides, strict=True)
    ]
    made = tables(plan("ring", work, module.P), "jax")  # any schedule's tables will do
    found = [
        module.unshard(np.split(np.asarray(x), module.P, axis=2), kv=kv)
        for x, kv in zip(both(*placed, made), (False, False, True, True), strict=True)
    ]
    truth = dense.forward(work, *inputs[:3])[0], *dense.backward(work, *inputs)
    return [float(abs(x - y).max()) for x, y in zip(found, truth, strict=True)]


def documents(random: np.random.Generator, total: int) -> Documents:
    cuts = np.sort(random.integers(0, total + 1, random.integers(0, 12)))
    return Documents(tuple(np.diff([0, *cuts, total]).tolist()))


@pytest.mark.parametrize("schedule", ["zigzag", "usp:ulysses=2"])
def test_twenty_batches_of_documents_are_exact_and_compile_once(schedule: str) -> None:
    module, calls, random = emitted(schedule, WORK, 4), list[int](), np.random.default_rng(0)
    both = compiled(module, calls)
    with jax.enable_x64(True):
        for batch in range(20):
            work = replace(WORK, mask=documents(random, 37) & Causal())
            out, *gradients = errors(module, both, work, batch)
            assert out <= 1e-12
            assert max(gradients) <= 1e-11
    assert (len(calls), both._cache_size()) == (1, 1)


@pytest.mark.parametrize("schedule", ["burst", "balanced", "allgather:keep=1"])
def test_any_kind_of_mask_can_follow_another(schedule: str) -> None:
    module, calls = emitted(schedule, replace(WORK, kv_seq=41), 3), list[int]()
    both = compiled(module, calls)
    masks: list[Mask] = [Causal(), Full(), Window(4) | Blocks(((0, 1), (0, 0)), 21)]
    with jax.enable_x64(True):
        for mask in masks:
            work = replace(WORK, kv_seq=41, mask=mask)
            assert max(errors(module, both, work, 7)) <= 1e-11
    assert len(calls) == 1


def test_tables_that_do_not_fit_are_refused_with_both_numbers() -> None:
    module = emitted("ring", WORK, 2)
    x, y = np.zeros((1, 4, 38, 3)), np.zeros((1, 2, 38, 3))

    def attend(made: dict[str, Array]) -> Any:
        return module.attention(x, y, y, made, mesh=mesh_of(2))

    short = tables(plan("ring", replace(WORK, seq=36, kv_seq=36), 2), "jax")
    with pytest.raises(ValueError, match=r"for \[36, 36\] queries and keys, not \[37, 37\]"):
        attend(short)
    other = tables(plan("ring", replace(WORK, scale=2.0), 2), "jax")
    with pytest.raises(ValueError, match=r"scale of 2.0, not 0.577"):
        attend(other)
    striped = replace(WORK, seq=3700, kv_seq=3700, mask=Documents((1, 1) * 1850))
    many = tables(plan("ring", striped, 2), "jax")
    assert many["boxes"].shape == (6, 4096)
    with pytest.raises(ValueError, match=r"boxes are \[6, 4096\], but there is room for \[6, 1024"):
        attend(many)
    assert short["boxes"].shape == (6, 1024)


def test_tables_that_do_not_fit_give_no_numbers_where_jax_traces_them() -> None:
    module = emitted("ring", WORK, 2)
    both = compiled(module, [])
    x, y = np.ones((1, 4, 38, 3), "f4"), np.ones((1, 2, 38, 3), "f4")
    good = tables(plan("ring", WORK, 2), "jax")
    wrong = tables(plan("ring", replace(WORK, seq=36, kv_seq=36), 2), "jax")
    assert np.isfinite(both(x, y, y, x, good)[0][:, :, :37]).all()
    assert np.isnan(both(x, y, y, x, wrong)[0][:, :, :37]).all()


def test_a_schedule_listed_for_one_mask_is_refused() -> None:
    found = plan("ring", replace(WORK, mask=Causal()), 4, pass_="both")
    pair = replace(found[0], name="mine"), replace(found[1], name="mine")
    with pytest.raises(PlanError, match="needs a schedule that follows a rule"):
        emit(pair, "jax", dynamic=True)


def test_the_file_checks_itself_reads_tables_and_passes_ruff(tmp_path: Path) -> None:
    work = replace(WORK, seq=4096, kv_seq=4096, mask=Documents((4000, 96)) & Causal())
    pair = plan("striped", work, 4, pass_="both")
    path = tmp_path / "program.py"
    path.write_text(emit(pair, "jax", dynamic=True))
    module = ModuleType("emitted")
    exec(path.read_text(), module.__dict__)
    assert "ringloom." not in path.read_text().partition('"""\n')[2]
    save_tables(tables(pair, "jax"), str(tmp_path / "tables.npz"))
    made = module.load(tmp_path / "tables.npz")
    assert module.check_tables(made, 4096, 4096) is True
    ruff = [sys.executable, "-m", "ruff"]
    for words in (
        [path, "--seq", "50"],
        *([*ruff, *kind, "--isolated", "--line-length", n, path] for kind in RUFF for n in WIDTHS),
    ):
        words = words if words[0] == sys.executable else [sys.executable, *words]
        done = subprocess.run(list(map(str, words)), capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


RUFF, WIDTHS = (["check"], ["format", "--diff"]), ("88", "100")
