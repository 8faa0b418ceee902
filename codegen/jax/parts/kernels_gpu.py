"""Attention on NVIDIA GPUs: by cuDNN in 16 bit, else by a kernel in Triton."""

import math

import jax
import jax.numpy as jnp
from jax._src.cudnn import fused_attention_stablehlo as cudnn
from jax.experimental.pallas.ops.gpu import attention as triton

from codegen.jax.parts.kernels_cpu import attend_backward_cpu, attend_cpu
from codegen.jax.parts.merge import wide

SCALE = 1.0


def attend_gpu(q, k, v, causal):
    """cuDNN or Triton; blocks of jnp for what neither takes."""
    if cudnn_takes(q):
        out, lse = run_cudnn(cudnn._dot_product_attention_fwd_p_wrapper, causal, q, k, v)
        return out.astype(wide(q)), lse[..., None]
    blocks = triton_blocks(q, k)
    if blocks is None:
        return attend_cpu(q, k, v, causal)

    def run(q, k, v):
        sizes = {"block_sizes": blocks, "return_residuals": True}
        return triton.mha(q, k, v, None, SCALE, causal, **sizes)

    out, lse = by_group(run, [q], [k, v])
    return out.reshape(q.shape).astype(wide(q)), lse.reshape(*q.shape[:3], 1) * math.log(2)


def attend_backward_gpu(dout, q, k, v, out, lse, causal):
    """The backward kernel of the same kind."""
    if cudnn_takes(q):
        arrays = q, k, v, lse[..., 0], out.astype(q.dtype), dout
        grads = run_cudnn(cudnn._dot_product_attention_bwd_p_wrapper, causal, *arrays)
        return tuple(x.astype(wide(x)) for x in grads)
    blocks = triton_blocks(q, k)
    if blocks is None:
        return attend_backward_cpu(dout, q, k, v, out, lse, causal)

    def run(q, out, dout, lse, k, v):
        known = q, k, v, None, out, lse.reshape(len(lse), 1, -1)
        how = SCALE, causal, blocks, "triton", None, 2, None, False, False, False
        return triton._mha_backward(*how, known, dout)[:3]

    queries = [q, out.astype(wide(q)), dout, lse / math.log(2)]  # its lse is of base 2
    dq, *dkv = (x.astype(wide(x)) for x in by_group(run, queries, [k, v]))
    return dq.reshape(q.shape), *(x.sum(1).reshape(k.shape) for x in dkv)


def cudnn_takes(q):
    """True for 16 bit and head dims that it has kernels for."""
    return q.dtype.itemsize == 2 and q.shape[3] % 8 == 0 and q.shape[3] <= 128


def run_cudnn(primitive, causal, *arrays):
    """The primitive under jax.nn.dot_product_attention, for [batch, heads, tokens, dim]."""
    unused = [jnp.zeros(0, arrays[0].dtype)] * 7  # bias, lengths, pages
    forward = {"is_training": True} if len(arrays) == 3 else {}
    return primitive.bind(
        *arrays[:3],
        *unused,
        *arrays[3:],
        scale=SCALE,
        seed=42,
        dropout_rate=0.0,
        variadic_args=(False, False),
        mask_type=cudnn.MaskType.CAUSAL if causal else cudnn.MaskType.NO_MASK,
        layout=cudnn.AttentionLayout.BNTH.value,
        sliding_window_length=None,
        **forward,
    )


def triton_blocks(q, k):
    """Sizes that divide the lengths, as many blocks of rows as of keys; None if there are none."""
    rows, cols = q.shape[2], k.shape[2]
    for a, b in ((32, 64), (64, 32), (32, 32), (16, 64), (64, 16), (16, 32), (32, 16), (16, 16)):
        if q.dtype.itemsize < 8 and rows % a == cols % b == 0 and rows * b == cols * a:
            return triton.BlockSizes(a, b, min(a, 32), b, a, min(b, 32))
    return None


def by_group(function, queries, keys):
    """function of [batch * KV heads, tokens, 1, width], over the query heads of each KV head."""
    lanes, group = keys[0].shape[0] * keys[0].shape[1], queries[0].shape[1] // keys[0].shape[1]
    queries = [x.reshape(lanes, group, *x.shape[2:])[..., None, :] for x in queries]
    keys = [x.reshape(lanes, *x.shape[2:])[:, :, None] for x in keys]
    return jax.vmap(function, [1] * len(queries) + [None] * len(keys), 1)(*queries, *keys)
