"""The function to call, over a mesh; its passes are printed."""

from functools import partial
from typing import TYPE_CHECKING

import jax
from jax.sharding import Mesh, PartitionSpec

from codegen.jax.parts.shapes import check_shapes

if TYPE_CHECKING:
    from codegen.jax.parts.stubs import local_attention, sizes

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

    q: [batch, heads, tokens, head_dim], k and v: [batch, KV heads, tokens, head_dim], in layout
    order: the shards one after the other; the result is like q. `batch_axis` and `head_axis`: axes
    of the mesh that shard batch and heads. Raises ValueError for what the program is not for.
    """
    if mesh.shape[axis] != RANKS:
        raise ValueError(f"a program for {RANKS} ranks, but axis {axis!r} has {mesh.shape[axis]}")
    check_shapes(q, k, v, *sizes(q, k, mesh.shape[head_axis] if head_axis else 1))
    spec = PartitionSpec(batch_axis, head_axis, axis)
    local = partial(local_attention, axis=axis)
    return jax.shard_map(local, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)(q, k, v)
