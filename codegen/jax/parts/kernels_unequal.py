"""`attend` and `attend_backward` where values have another dimension than keys."""

import jax.numpy as jnp

from codegen.jax.parts.kernels import on_platform

HEAD_DIM = V_HEAD_DIM = 1

# ---- Kernels


def attend(q, k, v, causal):
    """Output and log-sum-exp, wide, of queries over keys; causal: query n sees keys 0..n."""
    out, lse = on_platform(0, causal, *of_one_width(q, k, v))
    return out[..., :V_HEAD_DIM], lse


def attend_backward(dout, q, k, v, out, lse, causal):
    """The share of these pairs in dq, dk and dv, given out and lse over all keys of the queries."""
    *inputs, out, dout = of_one_width(q, k, v, out, dout)
    dq, dk, dv = on_platform(1, causal, *inputs, out, lse, dout)
    return dq[..., :HEAD_DIM], dk[..., :HEAD_DIM], dv[..., :V_HEAD_DIM]


def of_one_width(*arrays):
    """Arrays of the larger of both dimensions: kernels take keys and values of the same."""
    size = max(HEAD_DIM, V_HEAD_DIM)
    return [jnp.pad(x, [(0, 0)] * 3 + [(0, size - x.shape[3])]) for x in arrays]
