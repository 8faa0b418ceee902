"""The function to call, over a mesh, and its differentiable part on a device."""

from functools import partial

import jax
from jax.sharding import Mesh, PartitionSpec

from codegen.jax.parts.stubs import backward, forward, shapes

RANKS = V_HEAD_DIM = 1

# ---- The function to call


@partial(jax.custom_vjp, nondiff_argnums=(3,))  # sinkless
def local_attention(q, k, v, axis):  # sinkless
    return forward(q, k, v, axis)[0]  # sinkless


local_attention.defvjp(forward, backward)  # sinkless


def attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *,
    mesh: Mesh,
    axis: str = "sp",
    batch_axis: str | None = None,
    head_axis: str | None = None,
) -> jax.Array:
    """Exact attention of a sequence that is sharded over `axis` of a mesh.

    q, and the result: [batch, heads, tokens, head_dim], k and v: [batch, KV heads, ...]; tokens in
    layout order, shard after shard; `batch_axis` and `head_axis`: mesh axes that shard those, too.
    Raises ValueError for arrays and meshes that the program is not for.
    """
    if mesh.shape[axis] != RANKS:
        raise ValueError(f"a program for {RANKS} ranks, but axis {axis!r} has {mesh.shape[axis]}")
    q_shape, kv_shape = shapes(q, k, mesh.shape[head_axis] if head_axis else 1)
    v_shape = *kv_shape[:3], V_HEAD_DIM  # unequal
    for name, x, shape in (("q", q, q_shape), ("k", k, kv_shape), ("v", v, v_shape)):  # unequal
        if x.shape != shape or x.dtype != q.dtype:  # unequal
            raise ValueError(f"{name} is {x.dtype}{[*x.shape]}, not {q.dtype}{[*shape]}")  # unequal
    for name, x, shape in (("q", q, q_shape), ("k", k, kv_shape), ("v", v, kv_shape)):  # equal
        if x.shape != shape or x.dtype != q.dtype:  # equal
            raise ValueError(f"{name} is {x.dtype}{[*x.shape]}, not {q.dtype}{[*shape]}")  # equal
    spec = PartitionSpec(batch_axis, head_axis, axis)
    local = partial(local_attention, axis=axis)
    return jax.shard_map(local, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)(q, k, v)
