"""Attention by the splash kernel for TPUs; its backward kernels take the output of all tiles."""

import math

import jax
import jax.numpy as jnp

from ringloom.codegen.jax.parts.masked import wide

SCALE = 1.0
ALL_PLATFORMS = True


if not ALL_PLATFORMS:

    def on_platform(way, causal, q, *arrays):
        """Run the forward or backward kernel."""
        if q.dtype.itemsize > 4:
            raise ValueError(f"no kernel of a TPU takes {q.dtype}")
        with jax.default_matmul_precision("highest" if q.dtype.itemsize > 2 else None):
            return (attend_tpu, attend_backward_tpu)[way](causal, q, *arrays)


def splash():
    """JAX's splash attention, and its masks."""
    from jax.experimental.pallas.ops.tpu.splash_attention import (
        splash_attention_kernel,
        splash_attention_mask,
    )

    return splash_attention_kernel, splash_attention_mask


def attend_tpu(causal, q, k, v):
    """Splash attention; the scale is part of its queries."""
    with jax.enable_x64(False):  # the kernel counts in 32 bits
        kernel, hidden = splash_kernel(causal, q, k)
        out, (lse,) = jax.vmap(kernel, (0, 0, 0, None))(*map(in_128s, (q * SCALE, k, v)), hidden)
    return out[:, :, : q.shape[2]].astype(wide(q)), lse[:, :, : q.shape[2], None]


def attend_backward_tpu(causal, q, dout, out, lse, k, v):
    """The two backward kernels of splash attention."""

    def run(q, k, v, out, lse, dout):
        known = q, k, v, hidden, None, out, lse, kernel.dq_mask_info, kernel.dkv_mask_info
        return splash()[0]._splash_attention_bwd(**kernel.kwargs, res=known, do=dout)[3:6]

    with jax.enable_x64(False):
        kernel, hidden = splash_kernel(causal, q, k)
        arrays = q * SCALE, k, v, out.astype(q.dtype), lse[..., 0], dout
        dq, *dkv = (x.astype(wide(x)) for x in jax.vmap(run)(*map(in_128s, arrays)))
    return dq[:, :, : q.shape[2]] * SCALE, *(x[:, :, : k.shape[2]] for x in dkv)


def in_128s(x):
    """x with as many tokens as the kernel wants: a multiple of 128."""
    return jnp.pad(x, ((0, 0), (0, 0), (0, -x.shape[2] % 128)) + ((0, 0),) * (x.ndim - 3))


def splash_kernel(causal, q, k):
    """The kernel for one batch entry, and segments that hide padded keys where causal does not."""
    (kernels, masks), (rows, cols) = splash(), (x.shape[2] + -x.shape[2] % 128 for x in (q, k))
    size, kv_size = math.gcd(rows, 1024), math.gcd(cols, 1024)
    sizes = kernels.BlockSizes(*(size, kv_size, min(kv_size, 512)) * 2, size, kv_size)
    mask = (masks.CausalMask if causal else masks.FullMask)((rows, cols))
    mask = masks.MultiHeadMask([mask] * q.shape[1])
    kernel = kernels.make_splash_mha_single_device(mask, block_sizes=sizes, save_residuals=True)
    if causal or k.shape[2] == cols:
        return kernel, None
    padding = (jnp.arange(cols) >= k.shape[2]).astype(jnp.int32)
    return kernel, kernels.SegmentIds(jnp.zeros(rows, jnp.int32), padding)
