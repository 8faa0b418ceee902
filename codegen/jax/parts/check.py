"""The self-check: results on random inputs against dense attention by its definition."""

import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from codegen.jax.parts.dense import dense
from codegen.jax.parts.masked import wide

if TYPE_CHECKING:
    from codegen.jax.parts.function import ours

RANKS = HEADS = KV_HEADS = HEAD_DIM = V_HEAD_DIM = SEQ = KV_SEQ = CHECKED = EVERY = 1
RESULTS = ("out",)
PLAN: dict[str, Any] = {}

# ---- Self-check


def results(function, q, k, v, dout):
    """Output, then gradients, of one query in EVERY."""
    out, pull = jax.vjp(lambda *x: function(*x)[:, :, ::EVERY], q, k, v)
    yield out
    yield from pull(dout[:, :, ::EVERY])


def main(seq: int = CHECKED) -> int:
    """Compare this program with dense attention on random inputs; 0 if the errors are small."""
    mesh = Mesh(np.array(jax.devices()[:RANKS]), "sp")
    on_cpu = mesh.devices[0].platform == "cpu"
    jax.config.update("jax_enable_x64", on_cpu)
    dtype = jnp.dtype("float64" if on_cpu else str(PLAN["dtype"]))
    queries, keys = (1, HEADS, seq, HEAD_DIM), (1, KV_HEADS, seq + KV_SEQ - SEQ, HEAD_DIM)
    shapes = enumerate((queries, keys, keys, queries))  # equal
    of_values, of_out = (*keys[:3], V_HEAD_DIM), (*queries[:3], V_HEAD_DIM)  # unequal
    shapes = enumerate((queries, keys, of_values, of_out))  # unequal
    inputs = [jax.random.normal(jax.random.key(n), shape, dtype) for n, shape in shapes]
    inputs.insert(3, jax.random.normal(jax.random.key(4), (HEADS,), dtype))  # sinks
    exact = results(jax.jit(dense), *(x.astype(wide(x)) for x in inputs))
    values, wrong = results(partial(ours, mesh), *inputs), False
    for name, x, truth in zip(RESULTS, values, exact, strict=False):
        error, rounding = (float(jnp.abs(y - truth).max()) for y in (x, truth.astype(dtype)))
        limit = {"float64": 1e-12, "float32": 5e-6}.get(dtype.name, 2 * rounding)
        limit *= 1 if name == "out" else 10
        print(f"{name:3} error {error:.1e}, at most {limit:.1e}")
        wrong |= not error <= limit
    return int(wrong)


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", RANKS)
    sys.exit(main(*map(int, sys.argv[2:])))  # FILE --seq TOKENS
