"""Attention by its definition, which self-checks compare with."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from codegen.jax.parts.stubs import allowed

HEADS = KV_HEADS = SEQ = KV_SEQ = EVERY = V_HEAD_DIM = 1
PLAN: dict[str, Any] = {}

# ---- Self-check


def dense(q, *kv):
    """Attention by its definition, 64 queries at once."""  # every
    """Attention by its definition, of one query in EVERY, 64 at once; zeros for others."""  # some
    kv, sinks = kv[:2], kv[2]  # sinks
    k, v = (jnp.repeat(x, HEADS // KV_HEADS, 1) for x in kv)

    @jax.checkpoint
    def attend_one(i):
        seen = allowed(i + (KV_SEQ - SEQ), jnp.arange(k.shape[2]))
        scores = jnp.einsum("bhd,bhjd->bhj", q[:, :, i], k) * PLAN["scale"]
        return jnp.einsum("bhj,bhjd->bhd", jax.nn.softmax(scores, where=seen), v)  # sinkless
        logits = jnp.broadcast_to(sinks[:, None], (*q.shape[:2], 1))  # sinks
        logits = jnp.concatenate([jnp.where(seen, scores, -jnp.inf), logits], -1)  # sinks
        return jnp.einsum("bhj,bhjd->bhd", jax.nn.softmax(logits)[..., :-1], v)  # sinks

    with jax.default_matmul_precision("highest"):
        out = lax.map(attend_one, jnp.arange(q.shape[2]), batch_size=64)  # every
        out = lax.map(attend_one, jnp.arange(0, q.shape[2], EVERY), batch_size=64)  # some
    return jnp.moveaxis(out, 0, 2)  # every
    q = jnp.zeros_like(q, shape=(*q.shape[:3], V_HEAD_DIM))  # some unequal
    return jnp.zeros_like(q).at[:, :, ::EVERY].set(jnp.moveaxis(out, 0, 2))  # some
