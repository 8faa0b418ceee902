"""The function to call, over a mesh, and its differentiable part on a device."""

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh, PartitionSpec

from codegen.jax.parts.stubs import (
    backward,
    check_tables,
    forward,
    kv_positions,
    positions,
    shapes,
)

RANKS = V_HEAD_DIM = 1

# ---- The function to call


@partial(jax.custom_vjp, nondiff_argnums=(3,))  # bound sinkless
def local_attention(q, k, v, axis):  # bound sinkless
    return forward(q, k, v, axis)[0]  # bound sinkless


def refuse_second_derivatives(*_):
    raise NotImplementedError("second derivatives: the backward pass has no derivatives")


once = jax.custom_jvp(backward, nondiff_argnums=(0,))  # bound sinkless
once.defjvp(refuse_second_derivatives)  # bound sinkless
local_attention.defvjp(forward, once)  # bound sinkless


@partial(jax.jit, static_argnames="axis")
def on_device(q, k, v, axis):  # :on_device
    """Attention of the shards of a device."""  # unpadded
    """Attention of the shards of a device; padding counts as zero, whatever it holds."""  # padded
    q, k, v = (real(x, axis, positions) for x in (q, k, v))  # padded alike
    q = real(q, axis, positions)  # padded apart
    k, v = (real(x, axis, kv_positions) for x in (k, v))  # padded apart
    return real(local_attention(q, k, v, axis), axis, positions)  # :attend


def real(x, axis, positions):
    """A device's shard with zeros for padding."""
    tokens = jnp.array([positions(rank) >= 0 for rank in range(RANKS)])[lax.axis_index(axis)]
    return jnp.where(tokens[:, None], x, 0)


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
    Shapes are those of whole arrays, alike on all hosts. Raises ValueError for tokens that do not
    make the shards of the layout, other heads, mixed or other types, and meshes of another size.
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
    local, spec = partial(on_device, axis=axis), PartitionSpec(batch_axis, head_axis, axis)
    # No check of which axes values vary over: it knows no rule for the kernels that are called.
    run = partial(jax.shard_map, local, mesh=mesh, out_specs=spec, check_vma=False)
    return run(in_specs=(spec, spec, spec, PartitionSpec(head_axis)))(q, k, v, sinks)  # sinks
    return run(in_specs=(spec, spec, spec, PartitionSpec()))(q, k, v, tables) * fit  # given
    return run(in_specs=spec)(q, k, v)  # bound sinkless
