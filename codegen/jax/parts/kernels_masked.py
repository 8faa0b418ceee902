"""Attention of one tile by the kernel for masks of positions, where a program has that, too."""

import jax.numpy as jnp

from codegen.jax.parts.masked import attend_masked, attend_masked_backward, wide

SEQ = KV_SEQ = 0
STATS = False


def attend_cpu(causal, q, k, v):
    """`attend_masked` of tokens in their order."""
    return attend_masked(q, (k, v), *in_turn(causal, q, k))


def attend_backward_cpu(causal, q, dout, out, lse, k, v):
    """`attend_masked_backward` of tokens in their order."""
    if STATS:
        queries = q, dout, lse, (dout.astype(wide(q)) * out).sum(-1, keepdims=True)
    else:
        queries = q, dout, out, lse
    dq, dkv = attend_masked_backward(queries, (k, v), *in_turn(causal, q, k))
    return dq, *dkv


def in_turn(causal, q, k):
    """Positions from 0 on, and a mask of these, aligned ones of queries."""
    rows, cols = (jnp.arange(x.shape[2]) for x in (q, k))
    return rows, cols, lambda i, j: (j <= i - (KV_SEQ - SEQ)) | (not causal)
