"""Attention on NVIDIA GPUs: cuDNN in 16 bit, a Triton kernel otherwise."""

import math
from functools import partial

import jax
import jax.numpy as jnp

from ringloom.codegen.jax.parts.masked import accum_dtype

SCALE = 1.0
ALL_PLATFORMS = True


if not ALL_PLATFORMS:

    def on_platform(direction, causal, q, *arrays):
        """Run the forward (direction 0) or backward (1) kernel of cuDNN (16 bit) or Triton."""
        k, kernels = arrays[-2], (attend_triton, attend_backward_triton)
        if q.dtype.itemsize == 2 and q.shape[3] % 8 == 0 and q.shape[3] <= 128:
            kernels = attend_cudnn, attend_backward_cudnn
        elif q.dtype.itemsize > 4 or triton_blocks(q, k) is None:
            raise ValueError(f"no GPU kernel supports {q.dtype}{[*q.shape]} and {[*k.shape]}")
        with jax.default_matmul_precision("highest" if q.dtype.itemsize > 2 else None):
            return kernels[direction](causal, q, *arrays)


def cudnn():
    """Return the module of cuDNN: jax.nn.dot_product_attention returns no log-sum-exp."""
    from jax._src.cudnn import fused_attention_stablehlo

    return fused_attention_stablehlo


def triton():
    """Return the module of JAX's Triton kernel."""
    from jax.experimental.pallas.ops.gpu import attention

    return attention


def attend_cudnn(causal, q, k, v):
    """Run the kernel behind jax.nn.dot_product_attention."""
    primitive = cudnn()._dot_product_attention_fwd_p_wrapper
    out, lse = call_cudnn(primitive, causal, q, k, v, is_training=True)
    return out.astype(accum_dtype(q)), lse[..., None]


def attend_backward_cudnn(causal, q, dout, out, lse, k, v):
    """Run the backward kernel behind jax.nn.dot_product_attention."""
    arrays = q, k, v, lse[..., 0], out.astype(q.dtype), dout
    grads = call_cudnn(cudnn()._dot_product_attention_bwd_p_wrapper, causal, *arrays)
    return tuple(x.astype(accum_dtype(x)) for x in grads)


def call_cudnn(primitive, causal, *arrays, **options):
    """Call a cuDNN primitive on [batch, heads, tokens, dim], without bias, lengths or pages."""
    mask_types, layout = cudnn().MaskType, cudnn().AttentionLayout.BNTH.value
    mask = mask_types.CAUSAL if causal else mask_types.NO_MASK
    options |= {"scale": SCALE, "seed": 42, "dropout_rate": 0.0, "sliding_window_length": None}
    options |= {"layout": layout, "mask_type": mask}
    arrays = *arrays[:3], *[jnp.zeros(0, arrays[0].dtype)] * 7, *arrays[3:]
    return primitive.bind(*arrays, variadic_args=(False, False), **options)


def attend_triton(causal, q, k, v):
    """Run the Triton kernel; its log-sum-exp is in base 2."""
    sizes = triton().BlockSizes(*triton_blocks(q, k))
    options = {"causal": causal, "block_sizes": sizes, "return_residuals": True}
    run = partial(triton().mha, segment_ids=None, sm_scale=SCALE, **options)
    out, lse = by_group(run, [q], [k, v])
    return out.reshape(q.shape).astype(accum_dtype(q)), lse.reshape(*q.shape[:3], 1) * math.log(2)


def attend_backward_triton(causal, q, dout, out, lse, k, v):
    """Run the Triton backward kernel."""
    sizes = triton().BlockSizes(*triton_blocks(q, k))
    options = SCALE, causal, sizes, "triton", None, 2, None, False, False, False

    def run(q, out, dout, lse, k, v):
        residuals = q, k, v, None, out, lse.reshape(len(lse), 1, -1)
        return triton()._mha_backward(*options, residuals, dout)[:3]

    queries = [q, out.astype(accum_dtype(q)), dout, lse / math.log(2)]
    dq, *dkv = (x.astype(accum_dtype(x)) for x in by_group(run, queries, [k, v]))
    return dq.reshape(q.shape), *(x.sum(1).reshape(k.shape) for x in dkv)


def by_group(function, queries, keys):
    """Map a function of [batch * KV heads, tokens, 1, width] over the query heads per KV head."""
    keys = [x.reshape(-1, x.shape[2], 1, x.shape[3]) for x in keys]
    queries = [x.reshape(len(keys[0]), -1, x.shape[2], 1, x.shape[3]) for x in queries]
    return jax.vmap(function, [1] * len(queries) + [None] * len(keys), 1)(*queries, *keys)


def triton_blocks(q, k):
    """Return block sizes that divide both lengths into the same number of blocks, or None."""
    rows, cols = q.shape[2], k.shape[2]
    for a, b in ((32, 32), (64, 32), (32, 64), (16, 16)):
        if rows % a == cols % b == 0 and rows * b == cols * a:
            return a, b, min(a, 32), b, a, min(b, 32)
    return None
