"""Attention with sinks: one more logit per query head in each softmax.

Replaces `attention` and `local_attention` of programs without sinks.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec

from ringloom.codegen.jax.parts.function import refuse_second_derivatives, sharded_call
from ringloom.codegen.jax.parts.masked import merge
from ringloom.codegen.jax.parts.stubs import backward, forward, local_sinks

HELD = True

# ---- The function to call


def attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *,
    sinks: jax.Array | None = None,
    mesh: Mesh,
    axis: str = "sp",
    batch_axis: str | None = None,
    head_axis: str | None = None,
) -> jax.Array:
    """Compute exact attention over a sequence that is sharded over `axis` of a mesh.

    q and the result: [batch, heads, tokens, head_dim], k and v: [batch, KV heads, ...]; tokens in
    layout order, shard after shard. Axes `batch_axis` and `head_axis` shard batch and heads.
    sinks: [heads], one more logit per head.
    Shapes are global and equal on all hosts. Raises ValueError for a length that does not fit the
    layout, wrong head counts, mixed or non-float dtypes, and meshes of the wrong size.
    """
    if sinks is None or sinks.shape != (q.shape[1],):
        actual = sinks if sinks is None else [*sinks.shape]
        raise ValueError(f"sinks must have shape [heads], not {actual}")
    run, spec = sharded_call(q, k, v, mesh, axis, batch_axis, head_axis)
    return run(in_specs=(spec, spec, spec, PartitionSpec(head_axis)))(q, k, v, sinks)


@partial(jax.custom_vjp, nondiff_argnums=(4,))
def local_attention(q, k, v, sinks, axis):
    return forward_with_sinks(q, k, v, sinks, axis)[0]


def forward_with_sinks(q, k, v, sinks, axis):
    """Return output and residuals; a sink counts as one more key with value 0."""
    _, (q, k, v, out, lse, *kept) = forward(q, k, v, axis)
    if HELD:
        logits = local_sinks(sinks, axis)[:, None, None].astype(lse.dtype)
        kept[1:3] = merge(kept[1], kept[2], 0, logits)
    out, lse = merge(out, lse, 0, sinks[:, None, None].astype(lse.dtype))
    return out.astype(q.dtype), (q, k, v, out, lse, *kept, sinks)


def backward_with_sinks(axis, saved, dout):
    """Return gradients of a device's queries, keys and values, and its part of that of sinks."""
    *saved, sinks = saved
    out, lse = saved[3:5]
    delta = (dout.astype(lse.dtype) * out).sum(-1, keepdims=True)
    weights = jnp.exp(sinks[:, None, None] - jnp.maximum(lse, jnp.finfo(lse.dtype).min))
    dsinks = -(weights * delta).sum((0, 2, 3)).astype(sinks.dtype)
    return *backward(axis, saved, dout), dsinks


backward_rule = jax.custom_jvp(backward_with_sinks, nondiff_argnums=(0,))
backward_rule.defjvp(refuse_second_derivatives)
local_attention.defvjp(forward_with_sinks, backward_rule)
