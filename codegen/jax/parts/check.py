"""The self-check: results on random inputs against dense attention by its definition."""

from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh

from codegen.jax.parts.merge import wide

if TYPE_CHECKING:
    from codegen.jax.parts.function import attention
    from codegen.jax.parts.stubs import allowed, results, shard, unshard

RANKS = HEADS = KV_HEADS = HEAD_DIM = SEQ = KV_SEQ = CHECKED = 1
PLAN: dict[str, Any] = {}

# ---- Self-check


@jax.jit
def dense(q, k, v, dout, rows):
    """Results for some queries by the definition: their output, dq, and shares of dk and dv."""

    def attend_rows(q, k, v):
        k, v = (jnp.repeat(x, HEADS // KV_HEADS, 1) for x in (k, v))
        seen = allowed(rows[:, None] + (KV_SEQ - SEQ), jnp.arange(k.shape[2])[None])
        scores = jnp.where(seen, jnp.einsum("bhid,bhjd->bhij", q, k) * PLAN["scale"], -jnp.inf)
        weights = jnp.exp(scores - lax.stop_gradient(scores.max(-1, keepdims=True).clip(-1e30)))
        weights /= weights.sum(-1, keepdims=True).clip(1e-30)
        return jnp.einsum("bhij,bhjd->bhid", weights, v)

    q, k, v, dout = (x.astype(wide(x)) for x in (q[:, :, rows], k, v, dout[:, :, rows]))
    return results(attend_rows, q, k, v, dout)


def main(seq: int = CHECKED) -> int:
    """Compare this program with dense attention on random inputs; 0 if the errors are small."""
    mesh = Mesh(np.array(jax.devices()[:RANKS]), "sp")
    on_cpu = mesh.devices[0].platform == "cpu"
    jax.config.update("jax_enable_x64", on_cpu)
    dtype = jnp.dtype("float64" if on_cpu else str(PLAN["dtype"]))
    sizes = {"q": (HEADS, seq), "kv": (KV_HEADS, seq + KV_SEQ - SEQ)}
    inputs, placed = [], []
    rows = jnp.arange(0, seq, max(1, seq // 16384 * 64))  # of more than 16k a sample
    for n, side in enumerate(("q", "kv", "kv", "q")):
        x = jax.random.normal(jax.random.key(n), (1, *sizes[side], HEAD_DIM), dtype)
        x = jnp.zeros_like(x).at[:, :, rows].set(x[:, :, rows]) if n == 3 else x
        inputs.append(x)
        placed.append(jnp.concatenate([shard(x, rank, side=side) for rank in range(RANKS)], 2))
    ours = results(partial(attention, mesh=mesh), *placed)
    parts = (dense(*inputs, rows[i : i + 512]) for i in range(0, len(rows), 512))
    wrong = False
    names = ("out", "dq", "dk", "dv")
    for name, x, truth in zip(names, map(np.asarray, ours), zip(*parts, strict=True), strict=False):
        side = "q" if name in ("out", "dq") else "kv"
        x = unshard(jnp.split(jnp.asarray(x), RANKS, 2), side=side)
        x, truth = (x[:, :, rows], jnp.concatenate(truth, 2)) if side == "q" else (x, sum(truth))
        error, rounding = (float(jnp.abs(y - truth).max()) for y in (x, truth.astype(dtype)))
        limit = {"float64": 1e-12, "float32": 5e-6}.get(dtype.name, 2 * rounding)
        limit *= 1 if name == "out" else 10
        print(f"{name:3} error {error:.1e}, at most {limit:.1e}")
        wrong |= not error <= limit
    return int(wrong)
