"""Attention of one tile in a program for NVIDIA GPUs only."""

import jax

from codegen.jax.parts.kernels_gpu import attend_backward_gpu, attend_gpu, gpu_takes

# ---- Kernels: cuDNN for 16 bit, Triton for 32 bit.


def attend(q, k, v, causal):
    """Output and log-sum-exp [batch, heads, rows, 1] of some queries over some keys, wide.

    causal: query n sees keys 0..n, and there are as many keys as queries.
    """
    if not gpu_takes(q, k):
        raise ValueError(f"no kernel for {q.dtype}{list(q.shape)} and keys {list(k.shape)}")
    with jax.default_matmul_precision("highest" if q.dtype.itemsize > 2 else None):
        return attend_gpu(q, k, v, causal)


def attend_backward(dout, q, k, v, out, lse, causal):
    """The share of these pairs in dq, dk and dv, given out and lse over all keys of the queries."""
    with jax.default_matmul_precision("highest" if q.dtype.itemsize > 2 else None):
        return attend_backward_gpu(dout, q, k, v, out, lse, causal)
