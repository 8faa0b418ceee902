"""Attention of one tile in a program for NVIDIA GPUs only."""

import jax

from codegen.jax.parts.kernels_gpu import (
    attend_backward_cudnn,
    attend_backward_triton,
    attend_cudnn,
    attend_triton,
    triton_blocks,
)

# ---- Kernels: cuDNN for 16 bit, Triton for 32 bit.


def attend(q, k, v, causal):
    """Output and log-sum-exp, wide, of queries over keys; causal: query n sees keys 0..n."""
    fits = q.dtype.itemsize == 2 and q.shape[3] % 8 == 0 and q.shape[3] <= 128
    kernel = attend_cudnn if fits else attend_triton
    if not fits and (q.dtype.itemsize > 4 or triton_blocks(q, k) is None):
        raise ValueError(f"no kernel of a GPU takes {q.dtype}{[*q.shape]} and {[*k.shape]}")
    with jax.default_matmul_precision("highest" if q.dtype.itemsize > 2 else None):
        return kernel(causal, q, k, v)


def attend_backward(dout, q, k, v, out, lse, causal):
    """The share of these pairs in dq, dk and dv, given out and lse over all keys of the queries."""
    fits = q.dtype.itemsize == 2 and q.shape[3] % 8 == 0 and q.shape[3] <= 128
    kernel = attend_backward_cudnn if fits else attend_backward_triton
    with jax.default_matmul_precision("highest" if q.dtype.itemsize > 2 else None):
        return kernel(causal, q, k, v, out, lse, dout)
