"""The function to call, over a mesh, and its differentiable part on a device."""

from functools import partial

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec

from codegen.jax.parts.stubs import backward, check_tables, forward, shapes

RANKS = V_HEAD_DIM = 1

# ---- The function to call


@partial(jax.custom_vjp, nondiff_argnums=(3,))  # bound sinkless
def local_attention(q, k, v, axis):  # bound sinkless
    return forward(q, k, v, axis)[0]  # bound sinkless


local_attention.defvjp(forward, backward)  # bound sinkless


def attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    tables: dict[str, jax.Array],  # given
    *,
    sinks: jax.Array | None = None,  # sinks
    mesh: Mesh,
    axis: str = "sp",
    batch_axis: str | None = None,
    head_axis: str | None = None,
) -> jax.Array:
    """Exact attention of a sequence that is sharded over `axis` of a mesh.

    q, and the result: [batch, heads, tokens, head_dim], k and v: [batch, KV heads, ...]; tokens in
    layout order, shard after shard; `batch_axis` and `head_axis`: mesh axes that shard those, too.
    sinks: [heads], a logit each beside those of the keys.  # sinks
    tables: those of a mask; where JAX traces those of another program, the result is NaN.  # given
    Raises ValueError for arrays and meshes that the program is not for.
    """
    if mesh.shape.get(axis) != RANKS or head_axis not in (None, *mesh.shape):
        raise ValueError(f"{dict(mesh.shape)} must have {RANKS} ranks on {axis=}, and {head_axis=}")
    q_shape, kv_shape = shapes(q, k, mesh.shape[head_axis] if head_axis else 1)
    for name, x, shape in (("q", q, q_shape), ("k", k, kv_shape), ("v", v, kv_shape)):
        shape = (*shape[:3], V_HEAD_DIM) if name == "v" else shape  # unequal
        if x.shape != shape or x.dtype != q.dtype or not jnp.issubdtype(x.dtype, jnp.floating):
            wanted = f"{q.dtype}{[*shape]} of a float type"
            raise ValueError(f"{name} is {x.dtype}{[*x.shape]}, not {wanted}")
    if sinks is None or sinks.shape != (q.shape[1],):  # sinks
        given = sinks if sinks is None else [*sinks.shape]  # sinks
        raise ValueError(f"sinks are {given}, not [heads]")  # sinks
    fit = jnp.where(check_tables(tables), 1, jnp.nan)  # given
    local, spec = partial(local_attention, axis=axis), PartitionSpec(batch_axis, head_axis, axis)
    run = partial(jax.shard_map, local, mesh=mesh, out_specs=spec, check_vma=False)
    return run(in_specs=(spec, spec, spec, PartitionSpec(head_axis)))(q, k, v, sinks)  # sinks
    return run(in_specs=(spec, spec, spec, PartitionSpec()))(q, k, v, tables) * fit  # given
    return run(in_specs=spec)(q, k, v)  # bound sinkless
