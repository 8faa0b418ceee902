"""Attention of one tile in a program for TPUs only."""

import jax

from codegen.jax.parts.kernels_tpu import attend_backward_tpu, attend_tpu

# ---- Kernels: splash attention for TPUs.


def attend(q, k, v, causal):
    """Output and log-sum-exp, wide, of queries over keys; causal: query n sees keys 0..n."""
    if q.dtype.itemsize > 4:
        raise ValueError(f"no kernel of a TPU takes {q.dtype}")
    with jax.default_matmul_precision("highest" if q.dtype.itemsize > 2 else None):
        return attend_tpu(causal, q, k, v)


def attend_backward(dout, q, k, v, out, lse, causal):
    """The share of these pairs in dq, dk and dv, given out and lse over all keys of the queries."""
    with jax.default_matmul_precision("highest" if q.dtype.itemsize > 2 else None):
        return attend_backward_tpu(causal, q, k, v, out, lse, dout)
