"""The self-check: results on random inputs against dense attention by its definition."""

import sys
from argparse import ArgumentParser
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from codegen.jax.parts.dense import dense
from codegen.jax.parts.masked import wide
from codegen.jax.parts.stubs import attention, example, shard, unshard

RANKS = HEADS = KV_HEADS = HEAD_DIM = V_HEAD_DIM = SEQ = KV_SEQ = CHECKED = EVERY = 1
RESULTS = ("out",)
PLAN: dict[str, Any] = {}

# ---- Self-check


def ours(mesh, *inputs):
    """Attention by this program, of and in the order of the sequence."""
    sinks, inputs = inputs[-1], inputs[:-1]  # sinks
    given = [jnp.concatenate([shard(x, rank) for rank in range(RANKS)], 2) for x in inputs]  # alike
    sides = zip(inputs, ("q", "kv", "kv"), strict=True)  # apart
    shards = ([shard(x, rank, side=side) for rank in range(RANKS)] for x, side in sides)  # apart
    given = [jnp.concatenate(x, 2) for x in shards]  # apart
    attend = jax.jit(partial(attention, mesh=mesh))  # alone: XLA fails to partition the rest
    return unshard(jnp.split(attend(*given), RANKS, 2))  # bound sinkless
    return unshard(jnp.split(attend(*given, sinks=sinks), RANKS, 2))  # sinks
    return unshard(jnp.split(attend(*given, example()), RANKS, 2))  # given


def results(function, dout, *inputs):
    """Output, then gradients, of all queries."""  # every
    """Output, then gradients, of one query in EVERY."""  # some
    out, pull = jax.vjp(function, *inputs)  # every
    out, pull = jax.vjp(lambda *x: function(*x)[:, :, ::EVERY], *inputs)  # some
    yield out
    yield from pull(dout)  # every
    yield from pull(dout[:, :, ::EVERY])  # some


def main(seq: int = CHECKED) -> int:
    """Compare this program with dense attention on random inputs; 0 if the errors are small."""
    mesh = Mesh(np.array(jax.devices()[:RANKS]), "sp")
    on_cpu = mesh.devices[0].platform == "cpu"
    jax.config.update("jax_enable_x64", on_cpu)
    dtype = jnp.dtype("float64" if on_cpu else str(PLAN["dtype"]))
    queries, keys = (1, HEADS, seq, HEAD_DIM), (1, KV_HEADS, seq + KV_SEQ - SEQ, HEAD_DIM)
    shapes = enumerate((queries, queries, keys, keys))  # equal
    of_values, of_out = (*keys[:3], V_HEAD_DIM), (*queries[:3], V_HEAD_DIM)  # unequal
    shapes = enumerate((of_out, queries, keys, of_values))  # unequal
    inputs = [jax.random.normal(jax.random.key(n), shape, dtype) for n, shape in shapes]
    inputs.append(jax.random.normal(jax.random.key(4), (HEADS,), dtype))  # sinks
    exact = results(jax.jit(dense), *(x.astype(wide(x)) for x in inputs))
    values, wrong = results(partial(ours, mesh), *inputs), False
    for name, x, truth in zip(RESULTS, values, exact, strict=False):
        error, rounding = (float(jnp.abs(y - truth).max()) for y in (x, truth.astype(dtype)))
        limit = {"float64": 1e-12, "float32": 5e-6}.get(dtype.name, 4 * rounding)
        limit *= 1 if name == "out" else 10
        print(f"{name:3} error {error:.1e}, at most {limit:.1e}")
        wrong |= not error <= limit
    return int(wrong)


if __name__ == "__main__" and "__file__" in globals():  # not in a notebook
    words = ArgumentParser(description=main.__doc__)
    words.add_argument("--seq", type=int, default=CHECKED)  # free
    words.add_argument("--seq", type=int, default=CHECKED, choices=[CHECKED])  # fixed
    jax.config.update("jax_num_cpu_devices", RANKS)
    sys.exit(main(words.parse_args().seq))
