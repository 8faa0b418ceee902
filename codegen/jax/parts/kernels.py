"""Attention of one tile by a kernel; `on_platform` chooses the kernel in portable programs."""

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
    """Return output and log-sum-exp in the accumulator dtype; causal: query n sees keys 0..n."""
    if UNEQUAL:
        out, lse = on_platform(0, causal, *of_one_width(q, *kv))
        return out[..., :V_HEAD_DIM], lse
    else:
        return on_platform(0, causal, q, *kv)


def attend_backward(queries, kv, causal=False):
    """Return partial dq and dkv of these pairs; out and lse are final."""
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
    """Pad arrays to the larger head dimension: kernels need equal ones for keys and values."""
    size = max(HEAD_DIM, V_HEAD_DIM)
    return [jnp.pad(x, [(0, 0)] * 3 + [(0, size - x.shape[3])]) for x in arrays]


if ALL_PLATFORMS:

    def on_platform(way, causal, q, *arrays):
        """Run the forward or backward kernel of the platform that the program is lowered for."""
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
    """Return True if this JAX has the kernel; otherwise the CPU kernel is used."""
    try:
        kernel()
    except ImportError as error:
        warnings.warn(f"attention falls back to jnp, without a kernel: {error}", stacklevel=2)
        return False
    return True
