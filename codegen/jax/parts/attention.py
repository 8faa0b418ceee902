"""The function to call, and the differentiable function that runs on each device."""

from functools import partial

import jax
from jax.sharding import Mesh

from ringloom.codegen.jax.parts.function import refuse_second_derivatives, sharded_call
from ringloom.codegen.jax.parts.stubs import backward, forward

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
    """Compute exact attention over a sequence that is sharded over `axis` of a mesh.

    q and the result: [batch, heads, tokens, head_dim], k and v: [batch, KV heads, ...]; tokens in
    layout order, shard after shard. Axes `batch_axis` and `head_axis` shard batch and heads.
    Shapes are global and equal on all hosts. Raises ValueError for a length that does not fit the
    layout, wrong head counts, mixed or non-float dtypes, and meshes of the wrong size.
    """
    run, spec = sharded_call(q, k, v, mesh, axis, batch_axis, head_axis)
    return run(in_specs=spec)(q, k, v)


@partial(jax.custom_vjp, nondiff_argnums=(3,))
def local_attention(q, k, v, axis):
    return forward(q, k, v, axis)[0]


backward_rule = jax.custom_jvp(backward, nondiff_argnums=(0,))
backward_rule.defjvp(refuse_second_derivatives)
local_attention.defvjp(forward, backward_rule)
