"""Attention of one tile by the kernel of the platform that a program is lowered for."""

from functools import partial

import jax
from jax import lax

from codegen.jax.parts.kernels_cpu import attend_backward_cpu, attend_cpu
from codegen.jax.parts.kernels_gpu import attend_backward_gpu, attend_gpu
from codegen.jax.parts.kernels_tpu import attend_backward_tpu, attend_tpu

KERNELS = {
    "tpu": (attend_tpu, attend_backward_tpu),
    "cuda": (attend_gpu, attend_backward_gpu),
    "default": (attend_cpu, attend_backward_cpu),
}


# ---- Kernels: the one of the platform that the program is lowered for.


def attend(q, k, v, causal):
    """Output and log-sum-exp [batch, heads, rows, 1] of some queries over some keys, wide.

    causal: query n sees keys 0..n, and there are as many keys as queries.
    """
    return on_platform(0, (q, k, v), causal)


def attend_backward(dout, q, k, v, out, lse, causal):
    """The share of these pairs in dq, dk and dv, given out and lse over all keys of the queries."""
    return on_platform(1, (dout, q, k, v, out, lse), causal)


def on_platform(way, arrays, causal):
    """Run the forward or backward kernel of the platform, not in TF32 or bfloat16 for float32."""
    kernels = {name: partial(pair[way], causal=causal) for name, pair in KERNELS.items()}
    precision = "highest" if arrays[0].dtype.itemsize > 2 else None
    with jax.default_matmul_precision(precision):
        return lax.platform_dependent(*arrays, **kernels)
