"""Emitted JAX programs compose: jit, vmap, checkpoint policies, meshes, processes, files."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from numpy.typing import NDArray

from jax_devices import QUICK, Mesh, jax, self_check
from ringloom.codegen import emit
from ringloom.planner.masks import Causal, Window
from ringloom.planner.planning import plan
from ringloom.planner.plans import AnyPlans
from ringloom.planner.workload import Workload
from ringloom.runtimes.arrays import draw
from ringloom.runtimes.reference import dense

Array = NDArray[np.float32]
WORK = Workload(24, heads=4, kv_heads=2, head_dim=4, batch=2, mask=Causal(), dtype="float32")


def emitted(pair: AnyPlans) -> ModuleType:
    module = ModuleType("emitted")
    exec(emit(pair, "jax"), module.__dict__)
    return module


def in_layout(module: ModuleType, x: Array) -> Array:
    return np.concatenate([module.shard(x, r) for r in range(module.RANKS)], axis=2)


def in_sequence(module: ModuleType, x: object) -> Array:
    return module.unshard(np.split(np.asarray(x), module.RANKS, axis=2))


def test_a_mesh_may_shard_batch_and_heads_too() -> None:
    module = emitted(plan("zigzag", WORK, 2, pass_="both"))
    mesh = Mesh(np.array(jax.devices()).reshape(2, 2, 2), ("data", "sp", "tensor"))
    *inputs, dout = draw(WORK, 0)

    @jax.jit
    def both(q: Array, k: Array, v: Array, dout: Array) -> tuple[Array, ...]:
        def attend(q: Array, k: Array, v: Array) -> Array:
            return module.attention(q, k, v, mesh=mesh, batch_axis="data", head_axis="tensor")

        out, pull_back = jax.vjp(attend, q, k, v)
        return out, *pull_back(dout)

    sharding = jax.NamedSharding(mesh, jax.P("data", "tensor", "sp"))
    placed = [jax.device_put(in_layout(module, x), sharding) for x in (*inputs, dout)]
    out, *gradients = both(*placed)
    assert out.sharding.is_equivalent_to(sharding, 4)
    np.testing.assert_allclose(in_sequence(module, out), dense.forward(WORK, *inputs)[0], atol=5e-6)
    for result, truth in zip(gradients, dense.backward(WORK, *inputs, dout), strict=True):
        np.testing.assert_allclose(in_sequence(module, result), truth, atol=2e-5)


@pytest.mark.parametrize("schedule", ["ring", "allgather:keep=1"])
def test_programs_batch_by_vmap(schedule: str) -> None:
    """As many as there are batch rows and heads, so that no shape tells axes that are mixed up."""
    module = emitted(plan(schedule, replace(WORK, mask=Window(9)), 2, pass_="both"))
    mesh = Mesh(np.array(jax.devices()[:2]), ("sp",))
    *inputs, dout = (in_layout(module, x) for x in draw(WORK, 1))

    @jax.jit
    def both(dout: Array, *inputs: Array) -> tuple[Array, ...]:
        out, pull_back = jax.vjp(lambda *x: module.attention(*x, mesh=mesh), *inputs)
        return out, *pull_back(dout)

    twice = jax.vmap(both)(*(np.stack([x, -x]) for x in (dout, *inputs)))
    for sign, at in ((1, 0), (-1, 1)):
        for result, truth in zip(twice, both(*(sign * x for x in (dout, *inputs))), strict=True):
            np.testing.assert_allclose(result[at], truth, atol=1e-5)


def count(jaxpr: object, name: str) -> int:
    """Count the occurrences of a primitive in a jaxpr."""
    inner = (count(j, name) for e in jaxpr.eqns for j in jax.extend.core.jaxprs_in_params(e.params))
    return sum(eqn.primitive.name == name for eqn in jaxpr.eqns) + sum(inner)


def test_a_checkpoint_policy_saves_attention_and_its_communication() -> None:
    module = emitted(plan("ring", WORK, 4, pass_="both"))
    mesh = Mesh(np.array(jax.devices()[:4]), ("sp",))
    q, k, v, _ = (in_layout(module, x) for x in draw(WORK, 2))
    names = jax.checkpoint_policies.save_only_these_names("attention_out", "attention_lse")

    def loss(q: Array, k: Array, v: Array) -> Array:
        return module.attention(q * 2.0, k, v, mesh=mesh).sum()

    plain, again, saved = (
        jax.make_jaxpr(jax.grad(f, (0, 1, 2)))(q, k, v).jaxpr
        for f in (loss, jax.checkpoint(loss), jax.checkpoint(loss, policy=names))
    )
    once, twice, policy = (count(j, "ppermute") for j in (plain, again, saved))
    assert policy == once < twice
    kept = jax.jit(jax.grad(jax.checkpoint(loss, policy=names), (0, 1, 2)))(q, k, v)
    for x, y in zip(kept, jax.jit(jax.grad(loss, (0, 1, 2)))(q, k, v), strict=True):
        np.testing.assert_allclose(x, y, atol=1e-6)


def test_exchanges_of_heads_bring_what_is_read_and_nothing_else() -> None:
    module = emitted(plan("ulysses", WORK, 2, pass_="both"))
    mesh = Mesh(np.array(jax.devices()[:2]), ("sp",))
    q, k, v, _ = (in_layout(module, x) for x in draw(WORK, 4))

    def loss(q: Array, k: Array, v: Array) -> Array:
        return module.attention(q, k, v, mesh=mesh).sum()

    saved = "attention_out", "attention_lse", "attention_kept"
    policy = jax.checkpoint_policies.save_only_these_names(*saved)
    for function in (loss, jax.checkpoint(loss, policy=policy)):
        both = jax.make_jaxpr(jax.grad(function, (0, 1, 2)))(q, k, v).jaxpr
        assert count(both, "all_to_all") == 8  # q, k, v, out; dout, dq, dk, dv


def test_arrays_that_do_not_fit_are_refused_with_both_shapes() -> None:
    module = emitted(plan("ring", replace(WORK, mask=Window(9)), 4))
    mesh = Mesh(np.array(jax.devices()[:4]), ("sp",))
    q, k, v, _ = draw(WORK, 3)
    for wrong, said in (
        ((q, k[:, :, :20], v), r"k is float32\[2, 2, 20, 4\], not float32\[2, 2, 24, 4\]"),
        ((q[:, :3], k, v), r"\[2, 3, 24, 4\]"),
        ([x.astype(int) for x in (q, k, v)], r"q is int.* with a float dtype"),
    ):
        with pytest.raises(ValueError, match=said):
            module.attention(*wrong, mesh=mesh)
    for name, count, heads in ("sp", 8, None), ("context", 4, None), ("sp", 4, "tensor"):
        other = Mesh(np.array(jax.devices()[:count]), (name,))
        said = f"'{name}': {count}. must have 4 ranks on axis='sp', and head_axis={heads!r}"
        with pytest.raises(ValueError, match=said):
            module.attention(q, k, v, mesh=other, head_axis=heads)
    with pytest.raises(NotImplementedError, match="no gradients"):
        jax.grad(lambda q: module.attention(q, k, v, mesh=mesh).sum())(q)


# ---- the file


def test_the_file_checks_itself_and_fails_when_it_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = emit(plan("striped", replace(WORK, seq=4096, kv_seq=4096), 4, pass_="both"), "jax")
    path = tmp_path / "program.py"
    path.write_text(text)
    command = [sys.executable, str(path), "--seq", "52"]
    shell = os.environ | QUICK
    good = subprocess.run(command, capture_output=True, text=True, timeout=300, env=shell)
    assert good.returncode == 0, good.stderr
    monkeypatch.setattr("sys.argv", ["program.py", "--steps", "52"])
    monkeypatch.setattr(jax.config, "update", lambda *_: None)  # there are devices already
    with pytest.raises(SystemExit):
        exec(
            compile(text, "program.py", "exec"), {"__name__": "__main__", "__file__": "program.py"}
        )
    monkeypatch.undo()
    assert "unrecognized arguments: --steps 52" in capsys.readouterr().err
    wrong = text.replace("SCALE = 4**-0.5", "SCALE = 5**-0.5")
    assert wrong != text
    assert self_check(wrong, 52) == 1


def test_a_file_checks_values_of_another_dimension_and_sinks() -> None:
    work = replace(WORK, seq=16, kv_seq=16, v_head_dim=3, sinks=True)
    assert self_check(emit(plan("ring", work, 2, pass_="both"), "jax")) == 0
