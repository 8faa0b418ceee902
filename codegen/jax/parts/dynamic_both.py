"""Both passes as one differentiable function of a device's arrays and the tables."""

from functools import partial
from typing import Any

import jax
from jax.ad_checkpoint import checkpoint_name

from codegen.jax.parts.table import run_forward
from codegen.jax.parts.table_backward import run_backward

ROWS: dict[str, Any] = {}

# ---- The function to call


@partial(jax.custom_vjp, nondiff_argnums=(4,))
def local_attention(q, k, v, tables, axis):
    """Attention of a device's queries."""
    return forward_and_save(q, k, v, tables, axis)[0]


def forward_and_save(q, k, v, tables, axis):
    """The same, with what the backward pass needs; the names are for checkpoint policies."""
    rows = ROWS["forward"][0], tables["forward"]
    out, lse, kept = run_forward(q, k, v, axis, rows)
    out, lse = checkpoint_name(out, "attention_out"), checkpoint_name(lse, "attention_lse")
    kept = checkpoint_name(kept, "attention_kept")
    return out.astype(q.dtype), (q, k, v, out, lse, kept, tables)


def backward(axis, saved, dout):
    """Gradients of a device's queries, keys and values."""
    *arrays, tables = saved
    rows = ROWS["backward"][0], tables["backward"]
    return *run_backward(axis, arrays, dout, rows), None


local_attention.defvjp(forward_and_save, backward)
