"""Attention with sinks: a logit per query head in each softmax, beside those of the keys.

Instead of `local_attention` of another part.
"""

from functools import partial

import jax
import jax.numpy as jnp

from codegen.jax.parts.stubs import backward, forward, share_of

# ---- The function to call


@partial(jax.custom_vjp, nondiff_argnums=(4,))
def local_attention(q, k, v, sinks, axis):
    return forward_with_sinks(q, k, v, sinks, axis)[0]


def forward_with_sinks(q, k, v, sinks, axis):
    """Output, and what the backward pass needs, with the sinks in both."""
    _, (q, k, v, out, lse, *kept) = forward(q, k, v, axis)
    kept[1:3] = sunk(kept[1], kept[2], share_of(sinks, axis))  # held
    out, lse = sunk(out, lse, sinks)
    return out.astype(q.dtype), (q, k, v, out, lse, *kept, sinks)


def backward_with_sinks(axis, saved, dout):
    """Gradients of a device's queries, keys and values, and their share in those of the sinks."""
    *saved, sinks = saved
    out, lse = saved[3:5]
    delta = (dout.astype(lse.dtype) * out).sum(-1, keepdims=True)
    weights = jnp.exp(sinks[:, None, None] - jnp.maximum(lse, jnp.finfo(lse.dtype).min))
    dsinks = -(weights * delta).sum((0, 2, 3)).astype(sinks.dtype)
    return *backward(axis, saved, dout), dsinks


local_attention.defvjp(forward_with_sinks, backward_with_sinks)


def sunk(out, lse, sinks):
    """Results as if each head had seen one key more, with its sink's logit and no value."""
    total = jnp.logaddexp(lse, sinks[:, None, None].astype(lse.dtype))
    return out * jnp.exp(lse - jnp.maximum(total, jnp.finfo(lse.dtype).min)), total
