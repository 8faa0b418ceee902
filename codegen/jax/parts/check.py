"""The self-check: results on random inputs against dense attention by its definition."""

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh

from codegen.jax.parts.merge import wide

if TYPE_CHECKING:
    from codegen.jax.parts.stubs import allowed, results, shard, unshard

RANKS = HEADS = KV_HEADS = HEAD_DIM = SEQ = KV_SEQ = 1
SCALE = 1.0
PLAN: dict[str, Any] = {}

# ---- Self-check


@jax.jit
def dense(q, k, v, dout, rows):
    """Output and dq of some queries, and their shares of dk and dv, by the definition."""

    def attention_of_rows(q, k, v):
        k, v = (jnp.repeat(x, HEADS // KV_HEADS, 1) for x in (k, v))
        seen = allowed(rows[:, None] + (KV_SEQ - SEQ), jnp.arange(k.shape[2])[None])
        scores = jnp.where(seen, jnp.einsum("bhid,bhjd->bhij", q, k) * SCALE, -jnp.inf)
        top = lax.stop_gradient(scores.max(-1, keepdims=True).clip(-1e30))
        weights = jnp.exp(scores - top)
        weights /= weights.sum(-1, keepdims=True).clip(1e-30)
        return jnp.einsum("bhij,bhjd->bhid", weights, v)

    out, pull = jax.vjp(attention_of_rows, q, k, v)
    return out, *pull(dout)


def check(seq: int, kv_seq: int) -> int:
    """Print the largest errors on random inputs; return 1 if any is too large, else 0."""
    devices = jax.devices()[:RANKS]
    on_cpu = devices[0].platform == "cpu"
    jax.config.update("jax_enable_x64", on_cpu)
    dtype = jnp.dtype("float64" if on_cpu else PLAN["dtype"])
    sizes = (HEADS, seq), (KV_HEADS, kv_seq), (KV_HEADS, kv_seq), (HEADS, seq)
    rows = jnp.arange(0, seq, 1 if seq <= 16384 else seq // 256)  # of long ones some are compared
    q, k, v, dout = (
        jax.random.normal(key, (1, *size, HEAD_DIM), dtype)
        for key, size in zip(jax.random.split(jax.random.key(0), 4), sizes, strict=True)
    )
    dout = jnp.zeros_like(dout).at[:, :, rows].set(dout[:, :, rows])
    parts = []
    for i in range(0, len(rows), 512):
        some = rows[i : i + 512]
        arrays = (x.astype(wide(x)) for x in (q[:, :, some], k, v, dout[:, :, some]))
        parts.append(dense(*arrays, some))
    out, dq, dk, dv = zip(*parts, strict=True)
    exact = jnp.concatenate(out, 2), jnp.concatenate(dq, 2), sum(dk), sum(dv)
    sides = "q", "kv", "kv", "q"
    placed = (
        jnp.concatenate([shard(x, rank, side=side) for rank in range(RANKS)], 2)
        for x, side in zip((q, k, v, dout), sides, strict=True)
    )
    wrong = 0
    found = results(*placed, Mesh(np.array(devices), ("sp",)))
    for name, side, x, truth in zip(("out", "dq", "dk", "dv"), "qqkk", found, exact):
        x = unshard(jnp.split(x, RANKS, 2), side="q" if side == "q" else "kv")
        x = x[:, :, rows] if side == "q" else x
        error = float(jnp.abs(x - truth).max())
        limit = 2 * float(jnp.abs(truth - truth.astype(dtype)).max())
        limit = LIMITS.get(dtype.name, (limit, limit))[name != "out"]
        print(f"{name:3} error {error:.1e}, at most {limit:.1e}")
        wrong += not error <= limit
    return min(wrong, 1)


LIMITS = {"float64": (1e-12, 1e-11), "float32": (5e-6, 2e-5)}
