"""Attention with sinks: a logit per query head in each softmax, beside those of the keys.

Instead of `local_attention`, `attention`, `ours`, `dense` and `results` of other parts.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh, PartitionSpec

from codegen.jax.parts.masked import wide
from codegen.jax.parts.stubs import allowed, backward, forward, shapes, share_of

RANKS = HEADS = KV_HEADS = SEQ = KV_SEQ = EVERY = V_HEAD_DIM = 1
PLAN: dict[str, Any] = {}

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
    """Exact attention of a sequence that is sharded over `axis` of a mesh.

    q: [batch, heads, tokens, dim], k and v: [batch, KV heads, tokens, dim]; the result has the
    heads of q and the dim of v; sinks: [heads], the logits; tokens in layout order, shard after
    shard; `batch_axis` and `head_axis`: mesh axes that shard those, too.
    Raises ValueError for arrays and meshes that the program is not for.
    """
    if mesh.shape[axis] != RANKS:
        raise ValueError(f"a program for {RANKS} ranks, but axis {axis!r} has {mesh.shape[axis]}")
    q_shape, kv_shape = shapes(q, k, mesh.shape[head_axis] if head_axis else 1)
    v_shape = kv_shape  # equal
    v_shape = *kv_shape[:3], V_HEAD_DIM  # unequal
    for name, x, shape in (("q", q, q_shape), ("k", k, kv_shape), ("v", v, v_shape)):
        if x.shape != shape or x.dtype != q.dtype:
            raise ValueError(f"{name} is {x.dtype}{[*x.shape]}, not {q.dtype}{[*shape]}")
    if sinks is None or sinks.shape != (q.shape[1],):
        raise ValueError(f"sinks are {sinks if sinks is None else [*sinks.shape]}, not [heads]")
    spec = PartitionSpec(batch_axis, head_axis, axis)
    local = jax.shard_map(
        partial(local_attention, axis=axis),
        mesh=mesh,
        in_specs=(spec, spec, spec, PartitionSpec(head_axis)),
        out_specs=spec,
        check_vma=False,
    )
    return local(q, k, v, sinks)


# ---- Self-check


def dense(q, k, v, sinks):
    """Attention by its definition, of one query in EVERY, 64 at once; the others get zeros."""
    k, v = (jnp.repeat(x, HEADS // KV_HEADS, 1) for x in (k, v))
    logits = jnp.broadcast_to(sinks[:, None], (*q.shape[:2], 1))

    @jax.checkpoint
    def attend_one(i):
        seen = allowed(i + (KV_SEQ - SEQ), jnp.arange(k.shape[2]))
        scores = jnp.einsum("bhd,bhjd->bhj", q[:, :, i], k) * PLAN["scale"]
        every = jnp.concatenate([jnp.where(seen, scores, -jnp.inf), logits], -1)
        return jnp.einsum("bhj,bhjd->bhd", jax.nn.softmax(every)[..., :-1], v)

    with jax.default_matmul_precision("highest"):
        out = lax.map(attend_one, jnp.arange(0, q.shape[2], EVERY), batch_size=64)
    whole = jnp.zeros((*q.shape[:3], v.shape[3]), wide(q))
    return whole.at[:, :, ::EVERY].set(jnp.moveaxis(out, 0, 2))
