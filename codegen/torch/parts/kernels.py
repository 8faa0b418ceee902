"""Fused attention of a rectangle of queries and keys: full, causal or, with windows, a band.

A band is False if every row sees every column, True if the last row sees all columns and each
earlier row one column fewer, and (lo, hi) if row r sees the columns r + lo..r + hi.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend

from ringloom.codegen.torch.parts.merge import accum_dtype, pad_dims

SCALE, SIGN = 1.0, 1
HEAD_DIM = V_HEAD_DIM = 1 << 30
WINDOWS = SIGNED = UNEQUAL = GROUPED = ANY_LENGTH = True

# ---- Kernels: fused attention that returns, and accepts, the log-sum-exp of the scores.

aten = torch.ops.aten
on_cpu = aten._scaled_dot_product_flash_attention_for_cpu
on_cpu_backward = aten._scaled_dot_product_flash_attention_for_cpu_backward
efficient = aten._scaled_dot_product_efficient_attention
efficient_backward = aten._scaled_dot_product_efficient_attention_backward
cudnn = aten._scaled_dot_product_cudnn_attention
cudnn_backward = aten._scaled_dot_product_cudnn_attention_backward


def attend(q: Tensor, k: Tensor, v: Tensor, band: Any) -> tuple[Tensor, Tensor]:
    """Attend queries to keys; return output and log-sum-exp [batch, heads, rows, 1]."""
    if SIGNED:
        q = q * SIGN
    if UNEQUAL:
        q, k, v = pad_dims(q, k, v)
    q, k, v = (x.to(accum_dtype(x)) if x.is_cpu else x for x in (q, k, v))  # and the output
    causal, mask, options = band_arguments(q, k, band)
    if q.is_cpu:
        out, lse = on_cpu(q, k, v, 0.0, causal, **options)
    elif ANY_LENGTH and by_cudnn(q, k, v, band):
        out, lse, *_ = cudnn(q, k, v, None, True, 0.0, band, scale=SCALE)
    elif not WINDOWS and q.element_size() == 2:
        out, lse, *_ = aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal, **options)
    elif WINDOWS and q.element_size() == 2 and mask is None:
        settings = None, None, q.shape[2], k.shape[2], 0.0, causal, False
        qkv = (x.transpose(1, 2) for x in (q, k, v))
        out, lse, *_ = aten._flash_attention_forward(*qkv, *settings, **options)
        out = out.transpose(1, 2)
    else:
        if GROUPED:
            k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
        out, lse, *_ = efficient(q, k, v, mask, True, 0.0, causal, scale=SCALE)
    if UNEQUAL:
        out = out[..., :V_HEAD_DIM]
    return out, lse[:, :, : q.shape[2]].reshape(*q.shape[:3], 1)


def attend_backward(dout: Any, q: Any, out: Any, lse: Any, k: Any, v: Any, band: Any) -> Any:
    """Return the partial dq, dk and dv of these queries and keys; out and lse are final."""
    if SIGNED:
        q = q * SIGN
    if UNEQUAL:
        dout, q, k, v, out = pad_dims(dout, q, k, v, out)
    rows, cols, lse = q.shape[2], k.shape[2], lse[..., 0].contiguous()
    dout, q, k, v, out = (
        x.to(accum_dtype(x) if x.is_cpu else q.dtype) for x in (dout, q, k, v, out)
    )
    causal, mask, options = band_arguments(q, k, band)
    seed = torch.zeros((), dtype=torch.int64, device=q.device)  # for dropout, which is off
    if q.is_cpu:
        dq, dk, dv = on_cpu_backward(dout, q, k, v, out, lse, 0.0, causal, **options)
    elif ANY_LENGTH and by_cudnn(q, k, v, band):
        arguments: Any = out, lse[..., None], seed, seed, None, None, None, rows, cols, 0.0, band
        dq, dk, dv = cudnn_backward(dout, q, k, v, *arguments, scale=SCALE)
    elif not WINDOWS and q.element_size() == 2:
        arguments = dout, q, k, v, out, lse, None, None, rows, cols, 0.0, causal, seed, seed
        dq, dk, dv = aten._scaled_dot_product_flash_attention_backward(*arguments, **options)
    elif WINDOWS and q.element_size() == 2 and mask is None:
        dout, q, k, v, out = (x.transpose(1, 2) for x in (dout, q, k, v, out))
        settings = None, None, rows, cols, 0.0, causal, seed, seed
        grads = aten._flash_attention_backward(dout, q, k, v, out, lse, *settings, **options)
        dq, dk, dv = (x.transpose(1, 2) for x in grads)
    else:
        if WINDOWS:
            out = out.transpose(1, 2).contiguous().transpose(1, 2)  # memory order of the kernel
        lse = torch.nn.functional.pad(lse, (0, -rows % 32), value=torch.inf)
        if GROUPED:
            heads = k.shape[1]
            k, v = (x.repeat_interleave(q.shape[1] // heads, 1) for x in (k, v))
        saved = out, lse, seed, seed, 0.0, [True, True, True, False], causal
        dq, dk, dv, _ = efficient_backward(dout, q, k, v, mask, *saved, scale=SCALE)
        if GROUPED:
            dk, dv = (x.unflatten(1, (heads, -1)).sum(2) for x in (dk, dv))
    if SIGNED:
        dq = dq * SIGN
    if UNEQUAL:
        dq, dk = (x[..., :HEAD_DIM] for x in (dq, dk))
        dv = dv[..., :V_HEAD_DIM]
    return dq, dk, dv


def by_cudnn(q: Tensor, k: Tensor, v: Tensor, band: bool) -> bool:
    """Return True if PyTorch chooses cuDNN, as on Hopper GPUs in 16 bit.

    The causal mask of cuDNN starts at the first row and column.
    """
    if band and q.shape[2] != k.shape[2]:
        return False
    chosen: int = aten._fused_sdp_choice(q, k, v, None, 0.0, band, scale=SCALE, enable_gqa=True)
    return chosen == int(SDPBackend.CUDNN_ATTENTION.value)


def counts_from_end(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Return True if the kernel aligns causal masks at the last row and column, as on CUDA."""
    by_flash = not q.is_cpu and q.element_size() == 2 and not torch.version.hip
    if ANY_LENGTH:
        return by_flash and not by_cudnn(q, k, v, False)
    else:
        return by_flash


def takes_windows(x: Tensor) -> bool:
    """Return True if the kernel takes a window as an argument, as GPU flash kernels do."""
    return not x.is_cpu and x.element_size() == 2


def band_arguments(q: Tensor, k: Tensor, band: Any) -> tuple[bool, Any, dict[str, Any]]:
    """Return a band as kernel arguments: causal or not, a mask of scores, and other arguments.

    Flash takes the bounds of a window relative to the last row and column. A bound that reaches the
    number of columns counts as no bound, and the reverse, so with more rows than columns only
    smaller bounds are possible.
    """
    if WINDOWS and not isinstance(band, bool):
        (lo, hi), rows, cols = band, q.shape[2], k.shape[2]
        left, right = cols - rows - lo if lo > 1 - rows else -1, hi + rows - cols
        right = right if hi < cols - 1 else -1
        if q.element_size() == 2 and (rows <= cols or 0 <= right < cols):
            bounds = {"window_size_left": left, "window_size_right": right}
            return False, None, {"scale": SCALE, **bounds}
        seen = q.new_ones(rows, cols + -cols % 16, dtype=torch.bool).tril_(hi).triu_(lo)
        mask = torch.where(seen, q.new_zeros(()), -torch.inf)[:, :cols].expand(*q.shape[:2], -1, -1)
        return False, mask, {"scale": SCALE, "attn_mask": mask}
    return band, None, {"scale": SCALE}
