"""Attention by the kernel of the platform, which `on_platform` chooses."""

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
from ringloom.codegen.jax.parts.kernels_tpu import attend_backward_tpu, attend_tpu, splash_modules
from ringloom.codegen.jax.parts.masked import with_output

HEAD_DIM = V_HEAD_DIM = 1
UNEQUAL = STATS = ALL_PLATFORMS = True

# ---- Kernels


def attend(q, kv, causal=False):
    """Return output and log-sum-exp in the accumulator dtype; causal: query n sees keys 0..n."""
    if UNEQUAL:
        out, lse = on_platform(0, causal, *pad_dims(q, *kv))
        return out[..., :V_HEAD_DIM], lse
    else:
        return on_platform(0, causal, q, *kv)


def attend_backward(queries, kv, causal=False):
    """Return partial dq and (dk, dv) of these queries and keys; out and lse are final."""
    if STATS:
        queries = with_output(queries)
    if UNEQUAL:
        q, dout, out, lse = queries
        q, dout, out, k, v = pad_dims(q, dout, out, *kv)
        dq, dk, dv = on_platform(1, causal, q, dout, out, lse, k, v)
        return dq[..., :HEAD_DIM], (dk[..., :HEAD_DIM], dv[..., :V_HEAD_DIM])
    else:
        dq, *dkv = on_platform(1, causal, *queries, *kv)
        return dq, tuple(dkv)


def pad_dims(*arrays):
    """Pad arrays to the larger head dimension: kernels need q, k and v of the same width."""
    size = max(HEAD_DIM, V_HEAD_DIM)
    return [jnp.pad(x, [(0, 0)] * 3 + [(0, size - x.shape[3])]) for x in arrays]


if ALL_PLATFORMS:

    def on_platform(direction, causal, q, *arrays):
        """Run the forward kernel (direction 0) or backward kernel (1) of the target platform."""
        kernels = {"default": (attend_cpu, attend_backward_cpu)}
        if q.dtype.itemsize < 8 and importable(splash_modules):
            kernels["tpu"] = attend_tpu, attend_backward_tpu
        if q.dtype.itemsize == 2 and q.shape[3] % 8 == 0 and q.shape[3] <= 128:
            if importable(cudnn):
                kernels["cuda"] = attend_cudnn, attend_backward_cudnn
        elif q.dtype.itemsize < 8 and triton_blocks(q, arrays[-2]) and importable(triton):
            kernels["cuda"] = attend_triton, attend_backward_triton
        branches = {name: partial(pair[direction], causal) for name, pair in kernels.items()}
        with jax.default_matmul_precision("highest" if q.dtype.itemsize > 2 else None):
            return lax.platform_dependent(q, *arrays, **branches)


def importable(kernel):
    """Return True if the installed JAX has the kernel; without it, the CPU kernel runs."""
    try:
        kernel()
    except ImportError as error:
        warnings.warn(f"attention falls back to jnp, without a kernel: {error}", stacklevel=2)
        return False
    return True
