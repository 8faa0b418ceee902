"""Fused attention of a rectangle that is full, causal or a band: for masks with windows.

Instead of `kernels`, under the same names.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from codegen.torch.parts.merge import wide

SCALE = 1.0

# ---- Kernels: fused attention that returns, and takes back, the log-sum-exp of its scores.

aten = torch.ops.aten


def attend(q: Tensor, k: Tensor, v: Tensor, band: bool | Sequence[int]) -> tuple[Tensor, Tensor]:
    """Attention of some queries to some keys: output, and log-sum-exp [batch, heads, rows, 1]."""
    if q.is_cpu:  # in wide types, because this kernel returns its output in the type of q
        q, k, v = (x.to(wide(x)) for x in (q, k, v))
        out, lse = aten._scaled_dot_product_flash_attention_for_cpu(
            q, k, v, 0.0, band is True, attn_mask=bias(q, k, band), scale=SCALE
        )
    elif q.element_size() == 2:
        size = window(q, k, band)
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        out, lse, *_ = aten._flash_attention_forward(
            q, k, v, None, None, q.shape[1], k.shape[1], 0.0, band is True, False, scale=SCALE,
            window_size_left=size[0], window_size_right=size[1],
        )  # fmt: skip
        out = out.transpose(1, 2)
    else:
        qs, ks, vs = per_kv_head(k, q, k, v)
        out, lse, *_ = aten._scaled_dot_product_efficient_attention(
            qs, ks, vs, bias(qs, k, band), True, 0.0, band is True, scale=SCALE
        )
        out, lse = out.reshape(q.shape), lse[..., : q.shape[2]].reshape(q.shape[:3])
    return out, lse[..., None]


def attend_backward(
    dout: Tensor,
    q: Tensor,
    out: Tensor,
    lse: Tensor,
    k: Tensor,
    v: Tensor,
    band: bool | Sequence[int],
) -> tuple[Tensor, Tensor, Tensor]:
    """The share of these keys in dq, and of these queries in dk and dv; out and lse are final."""
    rows, cols, lse = q.shape[2], k.shape[2], lse[..., 0].contiguous()
    if q.is_cpu:
        dout, q, k, v, out = (x.to(wide(x)) for x in (dout, q, k, v, out))
        dq, dk, dv = aten._scaled_dot_product_flash_attention_for_cpu_backward(
            dout, q, k, v, out, lse, 0.0, band is True, attn_mask=bias(q, k, band), scale=SCALE
        )
        return dq, dk, dv
    dout, out = dout.to(q.dtype), out.to(q.dtype)
    if q.element_size() == 2:
        size = window(q, k, band)
        dout, q, k, v, out = (x.transpose(1, 2) for x in (dout, q, k, v, out))
        seed = torch.zeros(2, dtype=torch.uint64, device=q.device)
        dq, dk, dv = aten._flash_attention_backward(
            dout, q, k, v, out, lse, None, None, rows, cols, 0.0, band is True, seed, seed[0],
            scale=SCALE, window_size_left=size[0], window_size_right=size[1],
        )  # fmt: skip
        return dq.transpose(1, 2), dk.transpose(1, 2), dv.transpose(1, 2)
    lse = torch.nn.functional.pad(lse, (0, -rows % 32), value=torch.inf)[..., None]
    seed = torch.zeros((), dtype=torch.int64, device=q.device)
    douts, qs, ks, vs, outs, lses = per_kv_head(k, dout, q, k, v, out, lse)
    dq, dk, dv, _ = aten._scaled_dot_product_efficient_attention_backward(
        douts, qs, ks, vs, bias(qs, k, band), outs, lses[..., 0], seed, seed, 0.0,
        [True, True, True, False], band is True, scale=SCALE,
    )  # fmt: skip
    return dq.reshape(q.shape), dk.sum(1).reshape(k.shape), dv.sum(1).reshape(k.shape)


def window(q: Tensor, k: Tensor, band: bool | Sequence[int]) -> tuple[int, int]:
    """A band as flash kernels take it, from the last row and column on; -1 is no bound."""
    if isinstance(band, bool):
        return -1, -1
    (lo, hi), rows, cols = band, q.shape[2], k.shape[2]
    return cols - rows - lo if lo > 1 - rows else -1, hi + rows - cols if hi < cols - 1 else -1


def bias(q: Tensor, k: Tensor, band: bool | Sequence[int]) -> Tensor | None:
    """What is added to scores outside of a band; rows begin at multiples of 16 for CUDA."""
    if isinstance(band, bool):
        return None
    row, col = (torch.arange(x.shape[2], device=q.device) for x in (q, k))
    ahead = torch.nn.functional.pad(col, (0, -len(col) % 16)) - row[:, None]
    mask = torch.zeros(ahead.shape, dtype=q.dtype, device=q.device)
    mask.masked_fill_((ahead < band[0]) | (ahead > band[1]), -torch.inf)
    return mask[:, : len(col)].expand(*q.shape[:2], -1, -1)


def per_kv_head(k: Tensor, *tensors: Tensor) -> list[Tensor]:
    """A batch entry per KV head, which all its query heads share without a copy."""
    heads = [x.reshape(-1, x.shape[1] // k.shape[1], *x.shape[2:]) for x in tensors]
    group = max(x.shape[1] for x in heads)
    return [x.expand(-1, group, -1, -1) for x in heads]
