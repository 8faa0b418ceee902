"""Attention on NVIDIA GPUs: by cuDNN in 16 bit, else by a kernel in Triton."""

import math

import jax
import jax.numpy as jnp
from jax._src.cudnn import fused_attention_stablehlo as cudnn
from jax.experimental.pallas.ops.gpu import attention as triton

from codegen.jax.parts.merge import wide

SCALE = 1.0


def attend_gpu(q, k, v, causal):
    """cuDNN in 16 bit, else Triton."""
    return (attend_cudnn if cudnn_takes(q) else attend_triton)(q, k, v, causal)


def attend_backward_gpu(dout, q, k, v, out, lse, causal):
    """The backward kernel of the same kind."""
    kernel = attend_backward_cudnn if cudnn_takes(q) else attend_backward_triton
    return kernel(dout, q, k, v, out, lse, causal)


def gpu_takes(q, k):
    """True for arrays that one of the kernels takes."""
    rows, cols = q.shape[2], k.shape[2]
    return cudnn_takes(q) or (q.dtype.itemsize < 8 and triton_blocks(rows, cols) is not None)


def cudnn_takes(q):
    """True for 16 bit and widths that it has kernels for."""
    return q.dtype.itemsize == 2 and q.shape[3] % 8 == 0 and q.shape[3] <= 128


def attend_cudnn(q, k, v, causal):
    """The kernel of cuDNN, for 16 bit."""
    forward = cudnn._dot_product_attention_fwd_p_wrapper
    out, lse = call_cudnn(forward, causal, q, k, v, is_training=True)
    return out.astype(wide(q)), lse[..., None]


def attend_backward_cudnn(dout, q, k, v, out, lse, causal):
    """The backward kernel of cuDNN."""
    arrays = q, k, v, lse[..., 0], out.astype(q.dtype), dout
    grads = call_cudnn(cudnn._dot_product_attention_bwd_p_wrapper, causal, *arrays)
    return tuple(x.astype(wide(x)) for x in grads)


def call_cudnn(primitive, causal, *arrays, **options):
    """A primitive under jax.nn.dot_product_attention, for [batch, heads, tokens, dim]."""
    mask = cudnn.MaskType.CAUSAL if causal else cudnn.MaskType.NO_MASK
    options |= {"scale": SCALE, "seed": 42, "dropout_rate": 0.0, "sliding_window_length": None}
    options |= {"layout": cudnn.AttentionLayout.BNTH.value, "mask_type": mask}
    unused = [jnp.zeros(0, arrays[0].dtype)] * 7  # bias, lengths, pages
    return primitive.bind(
        *arrays[:3], *unused, *arrays[3:], variadic_args=(False, False), **options
    )


def attend_triton(q, k, v, causal):
    """The kernel in Triton; its log-sum-exp is of base 2."""
    blocks = triton_blocks(q.shape[2], k.shape[2])

    def run(q, k, v):
        return triton.mha(q, k, v, None, SCALE, causal, blocks, return_residuals=True)

    out, lse = by_group(run, [q], [k, v])
    return out.reshape(q.shape).astype(wide(q)), lse.reshape(*q.shape[:3], 1) * math.log(2)


def attend_backward_triton(dout, q, k, v, out, lse, causal):
    """The backward kernel in Triton."""
    blocks = triton_blocks(q.shape[2], k.shape[2])

    def run(q, out, dout, lse, k, v):
        how = SCALE, causal, blocks, "triton", None, 2, None, False, False, False
        known = q, k, v, None, out, lse.reshape(len(lse), 1, -1)
        return triton._mha_backward(*how, known, dout)[:3]

    queries = [q, out.astype(wide(q)), dout, lse / math.log(2)]
    dq, *dkv = (x.astype(wide(x)) for x in by_group(run, queries, [k, v]))
    return dq.reshape(q.shape), *(x.sum(1).reshape(k.shape) for x in dkv)


def triton_blocks(rows, cols):
    """Sizes that divide the lengths, as many blocks of rows as of keys."""
    for a, b in ((32, 64), (64, 32), (32, 32), (16, 64), (64, 16), (16, 32), (32, 16), (16, 16)):
        if rows % a == cols % b == 0 and rows * b == cols * a:
            return triton.BlockSizes(a, b, min(a, 32), b, a, min(b, 32))
    return None  # no sizes fit


def by_group(function, queries, keys):
    """function of [batch * KV heads, tokens, 1, width], over the query heads of each KV head."""
    lanes, group = keys[0].shape[0] * keys[0].shape[1], queries[0].shape[1] // keys[0].shape[1]
    queries = [x.reshape(lanes, group, *x.shape[2:])[..., None, :] for x in queries]
    keys = [x.reshape(lanes, *x.shape[2:])[:, :, None] for x in keys]
    return jax.vmap(function, [1] * len(queries) + [None] * len(keys), 1)(*queries, *keys)
