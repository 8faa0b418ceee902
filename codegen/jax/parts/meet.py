"""Queries that meet keys: the output of a device's queries grows by a rectangle at a time."""

import jax.numpy as jnp

from codegen.jax.parts.kernels import attend
from codegen.jax.parts.merge import merge, wide


def meet(out, lse, q, kv, rows=slice(None), cols=slice(None), causal=False):
    """Output and log-sum-exp of queries, some of which have met some more keys."""
    k, v = (x[:, :, cols] for x in kv)
    part = attend(q[:, :, rows], k, v, causal)
    merged = merge(out[:, :, rows], lse[:, :, rows], *part)
    return out.at[:, :, rows].set(merged[0]), lse.at[:, :, rows].set(merged[1])


def nothing(q):
    """Output and log-sum-exp of queries that have met no keys."""
    out = jnp.zeros(q.shape, wide(q))
    return out, jnp.full_like(out[..., :1], -jnp.inf)
