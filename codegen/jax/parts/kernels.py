"""Attention of one tile by the kernel of the platform that a program is lowered for."""

from functools import partial

import jax
from jax import lax

from codegen.jax.parts.kernels_cpu import attend_backward_cpu, attend_cpu
from codegen.jax.parts.kernels_gpu import attend_backward_gpu, attend_gpu, gpu_takes
from codegen.jax.parts.kernels_tpu import attend_backward_tpu, attend_tpu

# ---- Kernels: the one of the platform that the program is lowered for.


def attend(q, k, v, causal):
    """Output and log-sum-exp [batch, heads, rows, 1] of some queries over some keys, wide.

    causal: query n sees keys 0..n, and there are as many keys as queries.
    """
    kernels = attend_cpu, attend_tpu, attend_gpu
    return on_platform(kernels, (q, k, v), q, k, causal)


def attend_backward(dout, q, k, v, out, lse, causal):
    """The share of these pairs in dq, dk and dv, given out and lse over all keys of the queries."""
    kernels = attend_backward_cpu, attend_backward_tpu, attend_backward_gpu
    return on_platform(kernels, (dout, q, k, v, out, lse), q, k, causal)


def on_platform(kernels, arrays, q, k, causal):
    """Run the kernel of the platform if it takes such arrays; float32 neither in TF32 nor less."""
    cpu, tpu, gpu = (partial(kernel, causal=causal) for kernel in kernels)
    fused = {"tpu": tpu} if q.dtype.itemsize < 8 else {}
    if gpu_takes(q, k):
        fused["cuda"] = gpu
    with jax.default_matmul_precision("highest" if q.dtype.itemsize > 2 else None):
        return lax.platform_dependent(*arrays, **fused, default=cpu)
