"""The decoder layer of the JAX example: exact, without recomputing attention."""

from collections.abc import Callable
from functools import partial
from typing import Any

import layer_jax as example
import numpy as np
import pytest

from jax_devices import Mesh, jax
from ringloom.codegen import emit
from ringloom.planner.masks import Causal
from ringloom.planner.planning import plan
from ringloom.planner.workload import Workload
from ringloom.runtimes.emitted import load

jnp = jax.numpy
SEQ, RANKS = 32, 4
WIDTHS = {"dim": 24, "hidden": 20, "heads": 4, "kv_heads": 2, "head_dim": 4}
WORK = Workload(SEQ, heads=4, kv_heads=2, head_dim=4, mask=Causal(), dtype="float64")
SENT = "ppermute", "all_to_all", "all_gather"


def dense(q: Any, k: Any, v: Any) -> Any:
    """Causal attention by its definition."""
    k, v = (jnp.repeat(x, q.shape[1] // k.shape[1], 1) for x in (k, v))
    scores = jnp.einsum("bhid,bhjd->bhij", q, k) * q.shape[-1] ** -0.5
    weights = jax.nn.softmax(scores, where=jnp.tri(SEQ, dtype=bool))
    return jnp.einsum("bhij,bhjd->bhid", weights, v)


def gradients(apply: Callable[..., Any], at: Any, attend: Any) -> Callable[..., Any]:
    def run(params: Any, x: Any, dy: Any) -> Any:
        y, pull = jax.vjp(lambda params, x: apply(params, x, at, attend), params, x)
        return y, *pull(dy)

    return run


def executed(jaxpr: Any) -> int:
    """Count the messages of a program."""
    inner = [j for eqn in jaxpr.eqns for j in jax.extend.core.jaxprs_in_params(eqn.params)]
    return sum(eqn.primitive.name in SENT for eqn in jaxpr.eqns) + sum(map(executed, inner))


@pytest.mark.parametrize("schedule", ["zigzag", "ulysses"])
def test_a_layer_is_that_of_dense_attention_and_attends_once(schedule: str) -> None:
    program = load(emit(plan(schedule, WORK, RANKS, pass_="both"), "jax"))
    mesh = Mesh(np.array(jax.devices()[:RANKS]), ("sp",))
    at = np.concatenate([program.positions(rank) for rank in range(RANKS)])
    attend = partial(program.attention, mesh=mesh)
    with jax.enable_x64(True):
        params = example.init(1, dtype="float64", **WIDTHS)
        x, dy = jnp.asarray(np.random.default_rng(0).standard_normal((2, 1, SEQ, 24)))
        inputs = params, x[:, at], dy[:, at]
        ours = gradients(example.decoder_layer, at, attend)
        result = jax.jit(ours)(*inputs)
        truth = jax.jit(gradients(example.layer, np.arange(SEQ), dense))(params, x, dy)
        plain = gradients(example.layer, at, attend)
        again = jax.checkpoint(partial(example.layer, positions=at, attend=attend))
        twice = gradients(lambda params, x, at, attend: again(params, x), at, attend)
        counts = [executed(jax.make_jaxpr(f)(*inputs).jaxpr) for f in (ours, plain, twice)]
    order = np.argsort(at)
    for n in (0, 2):
        np.testing.assert_allclose(result[n][:, order], truth[n], rtol=0, atol=1e-11)
    for name, value in truth[1].items():
        np.testing.assert_allclose(result[1][name], value, rtol=0, atol=2e-11, err_msg=name)
    assert counts[0] == counts[1] > 0
    assert counts[2] > counts[1], "a plain checkpoint repeats the messages"


def test_layers_in_a_scan_compile_and_are_exact() -> None:
    """An update of some rows is no scatter: XLA cannot split one whose indices are empty."""
    program = load(emit(plan("zigzag", WORK, RANKS, pass_="both"), "jax"))
    mesh = Mesh(np.array(jax.devices()[:RANKS]), ("sp",))
    at = np.concatenate([program.positions(rank) for rank in range(RANKS)])

    def loss(at: Any, attend: Any, layers: Any, x: Any) -> Any:
        step = partial(example.decoder_layer, positions=at, attend=attend)
        return (jax.lax.scan(lambda x, params: (step(params, x), None), x, layers)[0] ** 2).sum()

    with jax.enable_x64(True):
        each = [example.init(seed, dtype="float64", **WIDTHS) for seed in (1, 2)]
        layers = jax.tree.map(lambda *values: jnp.stack(values), *each)
        x = jnp.asarray(np.random.default_rng(0).standard_normal((1, SEQ, 24)))
        ours = partial(loss, at, partial(program.attention, mesh=mesh))
        result = jax.jit(jax.grad(ours))(layers, x[:, at])
        truth = jax.jit(jax.grad(partial(loss, np.arange(SEQ), dense)))(layers, x)
    for name, value in truth.items():
        np.testing.assert_allclose(result[name], value, rtol=1e-12, atol=1e-11, err_msg=name)
