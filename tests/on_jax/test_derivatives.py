"""Emitted JAX programs have first derivatives in reverse mode, which no padding reaches."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from jax_devices import Mesh, jax, self_check
from ringloom.codegen import emit
from ringloom.planner.masks import Causal, Documents, Full, Window
from ringloom.planner.planning import plan
from ringloom.planner.workload import Workload
from ringloom.runtimes.arrays import draw, draw_sinks
from ringloom.runtimes.emitted import load

jnp = jax.numpy
WORK = Workload(7, heads=4, kv_heads=2, head_dim=4, mask=Causal() & Window(2), dtype="float32")
PADDED: dict[str, tuple[str, Workload, dict[str, Any]]] = {
    "masked": ("ring", WORK, {}),
    "causal": ("zigzag", replace(WORK, mask=Causal()), {}),
    "exchanged": ("ulysses", WORK, {}),
    "gathered": ("allgather", WORK, {}),
    "longer keys": ("ring", replace(WORK, kv_seq=9, mask=Full()), {}),
    "documents": ("burst", replace(WORK, mask=Documents((2, 5)) & Causal()), {}),
    "tables": ("balanced", WORK, {}),
    "sinks": ("ring", replace(WORK, sinks=True), {}),
    "sinks of tables": ("pass-q", replace(WORK, sinks=True), {}),
    "dynamic": ("ring", replace(WORK, mask=Full()), {"dynamic": True}),
}
MESH = Mesh(np.array(jax.devices()[:2]), ("sp",))


@cache
def program(kind: str) -> ModuleType:
    schedule, work, options = PADDED[kind]
    return load(emit(plan(schedule, work, 2, pass_="both"), "jax", **options))


def attend(kind: str) -> Callable[..., Any]:
    """The program's attention of q, k, v and sinks, if any, on two devices."""
    module = program(kind)
    tables = [module.example()] if kind == "dynamic" else []

    def call(q: Any, k: Any, v: Any, *sinks: Any) -> Any:
        named = dict(zip(("sinks",), sinks, strict=False))
        return module.attention(q, k, v, *tables, **named, mesh=MESH)

    return call


def shards(kind: str, padding: float) -> tuple[list[Any], Any, list[Any]]:
    """q, k, v and sinks, if any; dout; and where each of q, k, v has tokens."""
    module, (_, work, _) = program(kind), PADDED[kind]
    keys = getattr(module, "kv_positions", module.positions)
    places = [np.concatenate([at(rank) for rank in range(2)]) for at in (module.positions, keys)]
    q, k, v, dout = (
        np.where(at[:, None] < 0, np.float32(padding), x[:, :, at])
        for x, at in zip(draw(work, 1), [places[n] for n in (0, 1, 1, 0)], strict=True)
    )
    sinks = [draw_sinks(work, 1)] if work.sinks else []
    return [q, k, v, *sinks], dout, [places[n] >= 0 for n in (0, 1, 1)]


def with_gradients(kind: str, padding: float) -> list[Any]:
    arrays, dout, _ = shards(kind, padding)

    @jax.jit
    def both(dout: Any, *arrays: Any) -> Any:
        out, pull = jax.vjp(attend(kind), *arrays)
        return out, *pull(dout)

    return [np.asarray(x) for x in both(dout, *arrays)]


@pytest.mark.parametrize("kind", PADDED)
def test_nothing_in_padding_reaches_a_token_nor_the_other_way(kind: str) -> None:
    tokens = shards(kind, 0)[2]
    assert not all(real.all() for real in tokens)
    clean, *given = (with_gradients(kind, x) for x in (0, np.nan, np.inf))
    assert all(np.isfinite(x).all() for x in clean)
    for results in given:
        for x, right in zip(results, clean, strict=True):
            np.testing.assert_array_equal(x, right)
    for x, real in zip(clean, (tokens[0], *tokens), strict=False):
        assert x[:, :, real].any()
        assert not x[:, :, ~real].any()


def second_derivatives(f: Callable[..., Any], q: Any, t: Any) -> dict[str, Callable[[], Any]]:
    """Ways to a derivative of a derivative."""

    def loss(q: Any) -> Any:
        return (f(q) ** 2).sum()

    def slope(q: Any) -> Any:
        return (jax.grad(loss)(q) ** 2).sum()

    def pulled(dout: Any) -> Any:
        return (jax.vjp(f, q)[1](dout)[0] ** 2).sum()

    return {
        "reverse over reverse": lambda: jax.grad(slope)(q),
        "compiled": lambda: jax.jit(jax.grad(slope))(q),
        "by dout": lambda: jax.grad(pulled)(t),
        "forward over reverse": lambda: jax.jvp(jax.grad(loss), (q,), (t,)),
        "hessian": lambda: jax.hessian(loss)(q),
        "linearized": lambda: jax.linearize(jax.grad(loss), q),
    }


WAYS = [*second_derivatives(abs, None, None)]
CASES = [("masked", way) for way in WAYS] + [(kind, "compiled") for kind in [*PADDED][1:]]


@pytest.mark.parametrize(("kind", "way"), CASES)
def test_second_derivatives_are_refused(kind: str, way: str) -> None:
    (q, *others), dout, _ = shards(kind, 0)
    ways = second_derivatives(lambda q: attend(kind)(q, *others), q, dout)
    with pytest.raises(NotImplementedError, match="second derivatives are not supported"):
        ways[way]()


@pytest.mark.parametrize("kind", ["masked", "tables", "sinks", "dynamic"])
def test_derivatives_in_forward_mode_are_refused(kind: str) -> None:
    (q, *others), dout, _ = shards(kind, 0)

    def f(q: Any) -> Any:
        return attend(kind)(q, *others)

    for way in (
        lambda: jax.jvp(f, (q,), (dout,)),
        lambda: jax.jvp(jax.jit(f), (q,), (dout,)),
        lambda: jax.jit(lambda *x: jax.jvp(f, *x))((q,), (dout,)),
        lambda: jax.jacfwd(f)(q),
        lambda: jax.linearize(f, q)[1](dout),
    ):
        with pytest.raises(TypeError, match=r"can't apply forward-mode autodiff \(jvp\)"):
            way()


def test_a_padded_program_with_more_keys_than_queries_checks_itself() -> None:
    schedule, work, _ = PADDED["longer keys"]
    assert self_check(emit(plan(schedule, work, 2, pass_="both"), "jax")) == 0
