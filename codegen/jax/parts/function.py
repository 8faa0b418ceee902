"""The function to call, over a mesh; its passes are printed."""

from functools import partial
from typing import TYPE_CHECKING

import jax
from jax.sharding import Mesh, PartitionSpec

if TYPE_CHECKING:
    from codegen.jax.parts.stubs import local_attention, shapes

RANKS = 1

# ---- The function to call


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
    for name, x, shape in (("q", q, q_shape), ("k", k, kv_shape), ("v", v, kv_shape)):
        if x.shape != shape or x.dtype != q.dtype:
            raise ValueError(f"{name} is {x.dtype}{[*x.shape]}, not {q.dtype}{[*shape]}")
    spec = PartitionSpec(batch_axis, head_axis, axis)
    local = partial(local_attention, axis=axis)
    return jax.shard_map(local, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)(q, k, v)
