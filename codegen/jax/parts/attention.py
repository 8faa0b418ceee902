"""The function to call, and its differentiable part on a device."""

from functools import partial

import jax
from jax.sharding import Mesh

from ringloom.codegen.jax.parts.function import refuse_second_derivatives, sharded
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
    """Exact attention of a sequence that is sharded over `axis` of a mesh.

    q, and the result: [batch, heads, tokens, head_dim], k and v: [batch, KV heads, ...]; tokens in
    layout order, shard after shard; `batch_axis` and `head_axis`: mesh axes that shard those, too.
    Shapes are those of whole arrays, alike on all hosts. Raises ValueError for tokens that do not
    make the shards of the layout, other heads, mixed or other types, and meshes of another size.
    """
    run, spec = sharded(q, k, v, mesh, axis, batch_axis, head_axis)
    return run(in_specs=spec)(q, k, v)


@partial(jax.custom_vjp, nondiff_argnums=(3,))
def local_attention(q, k, v, axis):
    return forward(q, k, v, axis)[0]


once = jax.custom_jvp(backward, nondiff_argnums=(0,))
once.defjvp(refuse_second_derivatives)
local_attention.defvjp(forward, once)
