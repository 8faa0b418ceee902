"""Attention of one tile by a kernel; `on_platform` is here for programs of all platforms."""

import warnings
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from ringloom.codegen.jax.parts.kernels_cpu import attend_backward_cpu, attend_cpu
from ringloom.codegen.jax.parts.kernels_gpu import (
    attend_backward_cudnn,
    attend_backward_triton,
    attend_cudnn,
    attend_triton,
    cudnn,
    triton,
    triton_blocks,
)
from ringloom.codegen.jax.parts.kernels_tpu import attend_backward_tpu, attend_tpu, splash
from ringloom.codegen.jax.parts.masked import with_output

HEAD_DIM = V_HEAD_DIM = 1
UNEQUAL = STATS = ALL_PLATFORMS = True

# ---- Kernels


def attend(q, kv, causal=False):
    """Output and log-sum-exp, wide, of queries over keys; causal: query n sees keys 0..n."""
    if UNEQUAL:
        out, lse = on_platform(0, causal, *of_one_width(q, *kv))
        return out[..., :V_HEAD_DIM], lse
    else:
        return on_platform(0, causal, q, *kv)


def attend_backward(queries, kv, causal=False):
    """The share of these pairs in dq and dkv, given out and lse over all keys of the queries."""
    if STATS:
        queries = with_output(queries)
    if UNEQUAL:
        q, dout, out, lse = queries
        q, dout, out, k, v = of_one_width(q, dout, out, *kv)
        dq, dk, dv = on_platform(1, causal, q, dout, out, lse, k, v)
        return dq[..., :HEAD_DIM], (dk[..., :HEAD_DIM], dv[..., :V_HEAD_DIM])
    else:
        dq, *dkv = on_platform(1, causal, *queries, *kv)
        return dq, tuple(dkv)


def of_one_width(*arrays):
    """Arrays of the larger of both dimensions: kernels take keys and values of the same."""
    size = max(HEAD_DIM, V_HEAD_DIM)
    return [jnp.pad(x, [(0, 0)] * 3 + [(0, size - x.shape[3])]) for x in arrays]


if ALL_PLATFORMS:

    def on_platform(way, causal, q, *arrays):
        """Run the kernel, forward or backward, of the platform that a program is lowered for."""
        kernels = {"default": (attend_cpu, attend_backward_cpu)}
        if q.dtype.itemsize < 8 and importable(splash):
            kernels["tpu"] = attend_tpu, attend_backward_tpu
        if q.dtype.itemsize == 2 and q.shape[3] % 8 == 0 and q.shape[3] <= 128:
            if importable(cudnn):
                kernels["cuda"] = attend_cudnn, attend_backward_cudnn
        elif q.dtype.itemsize < 8 and triton_blocks(q, arrays[-2]) and importable(triton):
            kernels["cuda"] = attend_triton, attend_backward_triton
        branches = {name: partial(pair[way], causal) for name, pair in kernels.items()}
        with jax.default_matmul_precision("highest" if q.dtype.itemsize > 2 else None):
            return lax.platform_dependent(q, *arrays, **branches)


def importable(kernel):
    """True if this JAX has a kernel; its platform takes the one for CPUs otherwise."""
    try:
        kernel()
    except ImportError as error:
        warnings.warn(f"attention runs in jnp where its kernel would be: {error}", stacklevel=2)
        return False
    return True
