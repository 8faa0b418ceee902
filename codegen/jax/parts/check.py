"""The self-check: compares results on random inputs with dense attention."""

import sys
from argparse import ArgumentParser
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from ringloom.codegen.jax.parts.dense import dense, spacing
from ringloom.codegen.jax.parts.masked import accum_dtype
from ringloom.codegen.jax.parts.stubs import attention, example, shard, unshard

RANKS = HEADS = KV_HEADS = HEAD_DIM = V_HEAD_DIM = SEQ = KV_SEQ = CHECKED = 1
ANY_LENGTH = BACKWARD = DYNAMIC = SINKS = True
PLAN: dict[str, Any] = {}

# ---- Self-check


def run_program(mesh, *inputs):
    """Run this program; return the output of every `spacing`-th query, in sequence order."""
    sides = zip(inputs, ("q", "kv", "kv"), strict=False)
    shards = ([shard(x, rank, side=side) for rank in range(RANKS)] for x, side in sides)
    arrays = [jnp.concatenate(x, 2) for x in shards]
    attend = jax.jit(partial(attention, mesh=mesh))  # only attention: XLA cannot partition the rest
    if DYNAMIC:
        out = attend(*arrays, example())
    elif SINKS:
        out = attend(*arrays, sinks=inputs[3])
    else:
        out = attend(*arrays)
    return unshard(jnp.split(out, RANKS, 2))[:, :, ::spacing]


def results(function, dout, *inputs):
    """Yield the output of a function, then its gradients."""
    out, pull = jax.vjp(function, *inputs)
    yield out
    yield from pull(dout)


RESULTS = ("out", "dq", "dk", "dv", "dsinks") if BACKWARD else ("out",)


def main(seq: int = CHECKED) -> int:
    """Compare this program with dense attention on random inputs; return 0 if it is exact."""
    mesh = Mesh(np.array(jax.devices()[:RANKS]), "sp")
    on_cpu = mesh.devices[0].platform == "cpu"
    jax.config.update("jax_enable_x64", on_cpu)
    dtype = jnp.dtype("float64" if on_cpu else str(PLAN["dtype"]))
    kv_shape, dim = (KV_HEADS, seq + KV_SEQ - SEQ), V_HEAD_DIM
    shapes = (
        (HEADS, -(-seq // spacing), dim),
        (HEADS, seq, HEAD_DIM),
        (*kv_shape, HEAD_DIM),
        (*kv_shape, dim),
    )
    numbered = enumerate(shapes)
    inputs = [jax.random.normal(jax.random.key(n), (1, *shape), dtype) for n, shape in numbered]
    if SINKS:
        inputs.append(jax.random.normal(jax.random.key(4), (HEADS,), dtype))
    expected = results(jax.jit(dense), *(x.astype(accum_dtype(x)) for x in inputs))
    values, failed = results(partial(run_program, mesh), *inputs), False
    for name, x, truth in zip(RESULTS, values, expected, strict=False):
        error, rounding = (float(jnp.abs(y - truth).max()) for y in (x, truth.astype(dtype)))
        limit = {"float64": 1e-12, "float32": 5e-6}.get(dtype.name, 4 * rounding)
        limit *= 1 if name == "out" else 10
        print(f"{name:3} error {error:.1e}, at most {limit:.1e}")
        failed |= not error <= limit
    return int(failed)


if __name__ == "__main__" and "__file__" in globals():  # not in a notebook
    parser = ArgumentParser(description=main.__doc__)
    if ANY_LENGTH:
        parser.add_argument("--seq", type=int, default=CHECKED)
    else:
        parser.add_argument("--seq", type=int, default=CHECKED, choices=[CHECKED])
    jax.config.update("jax_num_cpu_devices", RANKS)
    sys.exit(main(parser.parse_args().seq))
