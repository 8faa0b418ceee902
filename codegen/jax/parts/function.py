"""Checks every call of `attention`, then runs it on each device of a mesh."""

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

from ringloom.codegen.jax.parts.stubs import kv_positions, local_attention, positions, shapes

RANKS = V_HEAD_DIM = 1
APART = PADDED = True

# ---- The function to call


def sharded_call(q, k, v, mesh, axis, batch_axis, head_axis):
    """Check a call; return a function that runs it on all devices, and the sharding of q, k, v."""
    if mesh.shape.get(axis) != RANKS or head_axis not in (None, *mesh.shape):
        raise ValueError(f"{dict(mesh.shape)} must have {RANKS} ranks on {axis=}, and {head_axis=}")
    q_shape, kv_shape = shapes(q, k, mesh.shape[head_axis] if head_axis else 1)
    v_shape = *kv_shape[:3], V_HEAD_DIM
    for name, x, shape in (("q", q, q_shape), ("k", k, kv_shape), ("v", v, v_shape)):
        if x.shape != shape or x.dtype != q.dtype or not jnp.issubdtype(x.dtype, jnp.floating):
            expected = f"{q.dtype}{[*shape]} with a float dtype"
            raise ValueError(f"{name} is {x.dtype}{[*x.shape]}, not {expected}")
    local, spec = partial(on_device, axis=axis), PartitionSpec(batch_axis, head_axis, axis)
    # check_vma does not know the kernels.
    return partial(jax.shard_map, local, mesh=mesh, out_specs=spec, check_vma=False), spec


@partial(jax.jit, static_argnames="axis")
def on_device(q, k, v, *more, axis):
    """Compute attention on the shards of one device."""
    if PADDED:
        # The values of padding must not matter.
        q = zero_padding(q, axis, positions)
        k, v = (zero_padding(x, axis, kv_positions if APART else positions) for x in (k, v))
        return zero_padding(local_attention(q, k, v, *more, axis), axis, positions)
    else:
        return local_attention(q, k, v, *more, axis)


def zero_padding(x, axis, positions):
    """Replace the padding in the shard of a device by zeros."""
    tokens = jnp.array([positions(rank) >= 0 for rank in range(RANKS)])[lax.axis_index(axis)]
    return jnp.where(tokens[:, None], x, 0)


def refuse_second_derivatives(*_):
    """Raise NotImplementedError for derivatives of the backward pass."""
    raise NotImplementedError("second derivatives are not supported")
