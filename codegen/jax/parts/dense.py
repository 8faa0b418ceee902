"""Dense attention by its definition, the reference of the self-check."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from ringloom.codegen.jax.parts.stubs import allowed

HEADS = KV_HEADS = SEQ = KV_SEQ = CHECKED = 1
SINKS = True
PLAN: dict[str, Any] = {}

# ---- Self-check


spacing = max(1, CHECKED**2 >> 28)  # only every spacing-th query is checked, above 16k tokens


def dense(q, *kv):
    """Compute attention by its definition for every `spacing`-th query, 64 at a time."""
    if SINKS:
        kv, sinks = kv[:2], kv[2]
    k, v = (jnp.repeat(x, HEADS // KV_HEADS, 1) for x in kv)

    @jax.checkpoint
    def attend_query(i):
        seen = allowed(i + (KV_SEQ - SEQ), jnp.arange(k.shape[2]))
        scores = jnp.einsum("bhd,bhjd->bhj", q[:, :, i], k) * PLAN["scale"]
        if SINKS:
            logits = jnp.broadcast_to(sinks[:, None], (*q.shape[:2], 1))
            logits = jnp.concatenate([jnp.where(seen, scores, -jnp.inf), logits], -1)
            weights = jax.nn.softmax(logits)[..., :-1]
        else:
            weights = jax.nn.softmax(scores, where=seen)
        return jnp.einsum("bhj,bhjd->bhd", weights, v)

    with jax.default_matmul_precision("highest"):
        out = lax.map(attend_query, jnp.arange(0, q.shape[2], spacing), batch_size=64)
    return jnp.moveaxis(out, 0, 2)
