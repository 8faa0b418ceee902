"""Both passes as one differentiable function of a device's arrays."""

from functools import partial
from typing import TYPE_CHECKING

import jax
from jax.ad_checkpoint import checkpoint_name

if TYPE_CHECKING:
    from codegen.jax.parts.stubs import backward, forward

# ---- The function to call


@partial(jax.custom_vjp, nondiff_argnums=(3,))
def local_attention(q, k, v, axis):
    return forward(q, k, v, axis)[0].astype(q.dtype)


def forward_and_save(q, k, v, axis):
    """Output and what is saved; the names are for checkpoint policies."""
    out, lse, kept = forward(q, k, v, axis)
    out, lse = checkpoint_name(out, "attention_out"), checkpoint_name(lse, "attention_lse")
    return out.astype(q.dtype), (q, k, v, out, lse, checkpoint_name(kept, "attention_kept"))


local_attention.defvjp(forward_and_save, backward)
