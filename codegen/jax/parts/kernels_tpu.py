"""Attention on TPUs: the splash kernel of JAX, whose backward kernels need the final output."""

import math

import jax
import jax.numpy as jnp

from ringloom.codegen.jax.parts.masked import accum_dtype

SCALE = 1.0
ALL_PLATFORMS = True


if not ALL_PLATFORMS:

    def on_platform(direction, causal, q, *arrays):
        """Run the forward kernel (direction 0) or the backward kernel (1)."""
        if q.dtype.itemsize > 4:
            raise ValueError(f"no TPU kernel supports {q.dtype}")
        with jax.default_matmul_precision("highest" if q.dtype.itemsize > 2 else None):
            return (attend_tpu, attend_backward_tpu)[direction](causal, q, *arrays)


def splash_modules():
    """Return the modules of JAX's splash attention and its masks."""
    from jax.experimental.pallas.ops.tpu.splash_attention import (
        splash_attention_kernel,
        splash_attention_mask,
    )

    return splash_attention_kernel, splash_attention_mask


def attend_tpu(causal, q, k, v):
    """Run splash attention with scaled queries."""
    with jax.enable_x64(False):  # the kernel uses 32-bit integers
        kernel, hidden = splash_kernel(causal, q, k)
        out, (lse,) = jax.vmap(kernel, (0, 0, 0, None))(*map(pad_to_128, (q * SCALE, k, v)), hidden)
    return out[:, :, : q.shape[2]].astype(accum_dtype(q)), lse[:, :, : q.shape[2], None]


def attend_backward_tpu(causal, q, dout, out, lse, k, v):
    """Run both backward kernels of splash attention."""

    def run(q, k, v, out, lse, dout):
        residuals = q, k, v, hidden, None, out, lse, kernel.dq_mask_info, kernel.dkv_mask_info
        return splash_modules()[0]._splash_attention_bwd(**kernel.kwargs, res=residuals, do=dout)[
            3:6
        ]

    with jax.enable_x64(False):
        kernel, hidden = splash_kernel(causal, q, k)
        arrays = q * SCALE, k, v, out.astype(q.dtype), lse[..., 0], dout
        dq, *dkv = (x.astype(accum_dtype(x)) for x in jax.vmap(run)(*map(pad_to_128, arrays)))
    return dq[:, :, : q.shape[2]] * SCALE, *(x[:, :, : k.shape[2]] for x in dkv)


def pad_to_128(x):
    """Pad tokens to a multiple of 128, which the kernel needs."""
    return jnp.pad(x, ((0, 0), (0, 0), (0, -x.shape[2] % 128)) + ((0, 0),) * (x.ndim - 3))


def splash_kernel(causal, q, k):
    """Return the kernel for one batch entry, and the segments that hide padded keys, if any."""
    (kernels, masks), (rows, cols) = (
        splash_modules(),
        (x.shape[2] + -x.shape[2] % 128 for x in (q, k)),
    )
    size, kv_size = math.gcd(rows, 1024), math.gcd(cols, 1024)
    sizes = kernels.BlockSizes(*(size, kv_size, min(kv_size, 512)) * 2, size, kv_size)
    mask = (masks.CausalMask if causal else masks.FullMask)((rows, cols))
    mask = masks.MultiHeadMask([mask] * q.shape[1])
    kernel = kernels.make_splash_mha_single_device(mask, block_sizes=sizes, save_residuals=True)
    if causal or k.shape[2] == cols:
        return kernel, None
    padding = (jnp.arange(cols) >= k.shape[2]).astype(jnp.int32)
    return kernel, kernels.SegmentIds(jnp.zeros(rows, jnp.int32), padding)
