"""Emitted JAX decoder layers: equal to their reference, and attention is computed once."""

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from codegen import emit
from jax_devices import QUICK, Mesh, jax
from planner.errors import PlanError
from planner.masks import Causal, Documents, Full, Mask, Prefix, Window
from planner.planning import plan
from planner.workload import Workload

WORK = Workload(29, heads=4, kv_heads=2, head_dim=4, mask=Causal(), dtype="float64")
RUFF = Path(sys.executable).with_name("ruff")


def emitted(schedule: str, work: Workload, ranks: int) -> ModuleType:
    module = ModuleType("emitted")
    exec(emit(plan(schedule, work, ranks, pass_="both"), "jax", layer=True), module.__dict__)
    return module


def mesh_of(ranks: int) -> Mesh:
    return Mesh(np.array(jax.devices()[:ranks]), ("sp",))


def gradients(layer: Callable[..., Any]) -> Callable[..., Any]:
    """y, and the gradients of parameters and x, given that of y."""

    def both(params: Any, x: Any, dy: Any) -> Any:
        y, pull_back = jax.vjp(layer, params, x)
        return y, *pull_back(dy)

    return both


def in_layout(module: ModuleType, x: Any) -> Any:
    return np.concatenate([module.shard(x, rank, axis=1) for rank in range(module.P)], axis=1)


def in_sequence(module: ModuleType, x: Any) -> Any:
    return module.unshard(np.split(np.asarray(x), module.P, axis=1), axis=1)


@pytest.mark.parametrize(
    ("schedule", "ranks", "change"),
    [
        ("zigzag", 4, {}),
        ("burst", 3, {"mask": Causal() & Window(9), "kv_heads": 1}),
        ("balanced", 5, {"mask": Documents((9, 0, 20)) & Causal(), "batch": 2}),
        ("allgather:keep=1", 4, {"mask": Prefix(5)}),
        ("usp:ulysses=2", 4, {"mask": Full(), "seq": 32, "kv_seq": 32}),
    ],
)
def test_output_and_all_gradients_are_those_of_the_reference(
    schedule: str, ranks: int, change: dict[str, Mask | int]
) -> None:
    work = replace(WORK, **change)
    module = emitted(schedule, work, ranks)
    module.ROWS = 3  # several parts of a shard, one of them padded
    layer = partial(module.decoder_layer, mesh=mesh_of(ranks))
    random = np.random.default_rng(0)
    with jax.enable_x64(True):
        params = module.init(1, "float64", dim=24, hidden=20)
        x, dy = random.standard_normal((2, work.batch, work.seq, 24))
        sharded = in_layout(module, x), in_layout(module, dy)
        y, dparams, dx = jax.jit(gradients(layer))(params, *sharded)
        wanted = jax.jit(gradients(module.reference))(params, x, dy)
    np.testing.assert_allclose(in_sequence(module, y), wanted[0], rtol=0, atol=1e-11)
    np.testing.assert_allclose(in_sequence(module, dx), wanted[2], rtol=0, atol=1e-11)
    assert dparams.keys() == wanted[1].keys()
    for name, value in dparams.items():
        np.testing.assert_allclose(value, wanted[1][name], rtol=0, atol=2e-11, err_msg=name)


def test_the_reference_is_the_one_of_the_torch_layer() -> None:
    torch = pytest.importorskip("torch")
    pair = plan("zigzag", WORK, 4, pass_="both")
    ours, theirs = ModuleType("jax_layer"), ModuleType("torch_layer")
    exec(emit(pair, "jax", layer=True), ours.__dict__)
    exec(emit(pair, "torch", layer=True), theirs.__dict__)
    x = np.random.default_rng(0).standard_normal((1, 29, 24))
    with jax.enable_x64(True):
        params = ours.init(1, "float64", dim=24, hidden=20)
        y = ours.reference(params, x)
    turned = {name: torch.tensor(np.asarray(value).T) for name, value in params.items()}
    np.testing.assert_allclose(y, theirs.reference(turned, torch.tensor(x)), rtol=0, atol=1e-12)


def test_angles_of_far_positions_are_exact() -> None:
    module = emitted("ring", replace(WORK, seq=2**22, kv_seq=2**22, head_dim=64), 4)
    at = np.array([-1, 0, 1023, 1024, 777_777, 2**22 - 1])
    cos, sin = module.turns(at, 2**22 - 1, np.float32)
    angles = np.maximum(at, 0)[:, None] / 10000.0 ** (np.arange(32) / 32)
    np.testing.assert_allclose(cos, np.cos(angles), rtol=0, atol=3e-7)
    np.testing.assert_allclose(sin, np.sin(angles), rtol=0, atol=3e-7)


def executed(jaxpr: Any, names: tuple[str, ...]) -> int:
    """How often primitives of these names run, turns of scans counted."""
    total = 0
    for eqn in jaxpr.eqns:
        total += eqn.primitive.name in names
        trips = eqn.params["length"] if eqn.primitive.name == "scan" else 1
        inner = jax.extend.core.jaxprs_in_params(eqn.params)
        total += trips * sum(executed(j, names) for j in inner)
    return total


@pytest.mark.parametrize("schedule", ["zigzag", "burst", "ulysses", "allgather:keep=1"])
def test_backward_repeats_neither_attention_nor_its_messages(schedule: str) -> None:
    module = emitted(schedule, WORK, 4)
    where = module.Where(mesh_of(4), "sp", None, None)
    params = module.init(1, dim=24, hidden=20)
    x = np.zeros((1, 4 * len(module.positions(0)), 24), "f4")
    plain = partial(module.layer_body, where=where, seq=29)
    ours, once, twice = (
        jax.make_jaxpr(gradients(layer))(params, x, x).jaxpr
        for layer in (
            partial(module.decoder_layer, mesh=where.mesh),
            plain,
            jax.checkpoint(plain),
        )
    )
    sent = "ppermute", "all_to_all", "all_gather"
    assert executed(ours, sent) == executed(once, sent) < executed(twice, sent)
    kernels = ("exp",)  # silu has none, softmax of a tile does
    assert executed(ours, kernels) == executed(once, kernels) < executed(twice, kernels)


def test_what_is_kept_is_x_and_what_attention_returned() -> None:
    module = emitted("zigzag", WORK, 4)
    params = module.init(1, dim=24, hidden=20)
    x = np.zeros((1, 4 * len(module.positions(0)), 24), "f4")
    layer = partial(module.decoder_layer, mesh=mesh_of(4))
    _, pull_back = jax.vjp(lambda x: layer(params, x), x)
    kept = {x.shape for x in jax.tree.leaves(pull_back)}
    assert (1, 4, x.shape[1], 4) in kept  # out
    assert not any(20 in shape and x.shape[1] in shape for shape in kept)  # the wide middle


def test_plans_that_make_no_layer_are_refused() -> None:
    with pytest.raises(PlanError, match="needs a backward plan too"):
        emit(plan("ring", WORK, 2), "jax", layer=True)
    for change, match in (({"kv_seq": 30}, "29 queries, 30 keys"), ({"head_dim": 3}, "not 3")):
        pair = plan("ring", replace(WORK, **change), 2, pass_="both")
        with pytest.raises(PlanError, match=match):
            emit(pair, "jax", layer=True)


def test_the_file_checks_itself_and_passes_ruff(tmp_path: Path) -> None:
    work = replace(WORK, seq=4096, kv_seq=4096, mask=Causal() & Window(100))
    path = tmp_path / "layer.py"
    path.write_text(emit(plan("burst", work, 2, pass_="both"), "jax", layer=True))
    for words in (["check"], ["format", "--diff"]):
        for width in ("88", "100"):
            options = [RUFF, *words, "--isolated", "--line-length", width, path]
            done = subprocess.run(options, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stdout + done.stderr
    command = [sys.executable, path, "--seq", "50"]
    quick = os.environ | QUICK
    good = subprocess.run(command, capture_output=True, text=True, check=False, env=quick)
    assert good.returncode == 0, good.stderr
    text = path.read_text()
    path.write_text(text.replace("* out).sum(axis=-1", "* out).max(axis=-1"))
    assert path.read_text() != text
    bad = subprocess.run(command, capture_output=True, text=True, check=False, env=quick)
    assert bad.returncode == 1, bad.stderr
    assert "WRONG at 50 tokens" in bad.stdout
