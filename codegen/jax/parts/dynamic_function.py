"""The function to call, over a mesh, with the tables of a mask."""

from functools import partial
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec

from codegen.jax.parts.dynamic_tables import check_tables

if TYPE_CHECKING:
    from codegen.jax.parts.stubs import local_attention, shapes

RANKS = 1

# ---- The function to call


def attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    tables: dict[str, jax.Array],
    *,
    mesh: Mesh,
    axis: str = "sp",
    batch_axis: str | None = None,
    head_axis: str | None = None,
) -> jax.Array:
    """Exact attention, under the mask of `tables`, of a sequence sharded over `axis` of a mesh.

    q, and the result: [batch, heads, tokens, head_dim]; k, v: [batch, KV heads, tokens, head_dim];
    tokens in layout order, shard after shard. `batch_axis`, `head_axis`: mesh axes that shard them.
    Raises ValueError for arrays, tables and meshes that the program is not for; where JAX traces
    tables of another program, the result is NaN.
    """
    if mesh.shape[axis] != RANKS:
        raise ValueError(f"a program for {RANKS} ranks, but axis {axis!r} has {mesh.shape[axis]}")
    q_shape, kv_shape = shapes(q, k, mesh.shape[head_axis] if head_axis else 1)
    for name, x, shape in (("q", q, q_shape), ("k", k, kv_shape), ("v", v, kv_shape)):
        if x.shape != shape or x.dtype != q.dtype:
            raise ValueError(f"{name} is {x.dtype}{[*x.shape]}, not {q.dtype}{[*shape]}")
    q = jnp.where(check_tables(tables), q, jnp.nan)
    spec = PartitionSpec(batch_axis, head_axis, axis)
    local = jax.shard_map(
        partial(local_attention, axis=axis),
        mesh=mesh,
        in_specs=(spec, spec, spec, PartitionSpec()),
        out_specs=spec,
        check_vma=False,
    )
    return local(q, k, v, tables)
