"""Fused attention of a rectangle that is full, causal or a band: for masks with windows.

Instead of `kernels`, under the same names.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from codegen.torch.parts.merge import padded, wide

SCALE, SIGN = 1.0, 1
HEAD_DIM = V_HEAD_DIM = 1 << 30

# ---- Kernels: fused attention that returns, and takes back, the log-sum-exp of its scores.

aten = torch.ops.aten
on_cpu = aten._scaled_dot_product_flash_attention_for_cpu
efficient = aten._scaled_dot_product_efficient_attention


def attend(q: Tensor, k: Tensor, v: Tensor, band: bool | Sequence[int]) -> tuple[Tensor, Tensor]:
    """Attention of some queries to some keys: output, and log-sum-exp [batch, heads, rows, 1]."""
    q = q * SIGN  # signed
    q, k, v = padded(q, k, v)  # unequal
    if q.is_cpu:  # in wide types, because this kernel returns its output in the type of q
        q, k, v = (x.to(wide(x)) for x in (q, k, v))
        out, lse = on_cpu(q, k, v, 0.0, band is True, attn_mask=bias(q, k, band), scale=SCALE)
    elif q.element_size() == 2:
        qs, ks, vs = (x.transpose(1, 2) for x in (q, k, v))
        out, lse, *_ = aten._flash_attention_forward(
            qs, ks, vs, None, None, q.shape[2], k.shape[2], 0.0, band is True, False, scale=SCALE,
            **window(q, k, band),
        )  # fmt: skip
        out = out.transpose(1, 2)
    else:
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
        out, lse, *_ = efficient(q, k, v, bias(q, k, band), True, 0.0, band is True, scale=SCALE)
    out = out[..., :V_HEAD_DIM]  # unequal
    return out, lse[..., : q.shape[2], None]


def attend_backward(dout: Any, q: Any, out: Any, lse: Any, k: Any, v: Any, band: Any) -> Any:
    """The share of these keys in dq, and of these queries in dk and dv; out and lse are final."""
    q = q * SIGN  # signed
    dout, q, k, v, out = padded(dout, q, k, v, out)  # unequal
    rows, cols, heads, lse = q.shape[2], k.shape[2], k.shape[1], lse[..., 0].contiguous()
    dout, q, k, v, out = (x.to(wide(x) if x.is_cpu else q.dtype) for x in (dout, q, k, v, out))
    if q.is_cpu:
        dq, dk, dv = aten._scaled_dot_product_flash_attention_for_cpu_backward(
            dout, q, k, v, out, lse, 0.0, band is True, attn_mask=bias(q, k, band), scale=SCALE
        )
    elif q.element_size() == 2:
        size, seed = window(q, k, band), torch.zeros(2, dtype=torch.uint64, device=q.device)
        dout, q, k, v, out = (x.transpose(1, 2) for x in (dout, q, k, v, out))
        grads = aten._flash_attention_backward(
            dout, q, k, v, out, lse, None, None, rows, cols, 0.0, band is True, seed, seed[0],
            scale=SCALE, **size,
        )  # fmt: skip
        dq, dk, dv = (x.transpose(1, 2) for x in grads)
    else:
        lse = torch.nn.functional.pad(lse, (0, -rows % 32), value=torch.inf)
        seed = torch.zeros((), dtype=torch.int64, device=q.device)
        k, v = (x.repeat_interleave(q.shape[1] // heads, 1) for x in (k, v))
        dq, dk, dv, _ = aten._scaled_dot_product_efficient_attention_backward(
            dout, q, k, v, bias(q, k, band), out, lse, seed, seed, 0.0, [True, True, True, False],
            band is True, scale=SCALE,
        )  # fmt: skip
        dk, dv = (x.unflatten(1, (heads, -1)).sum(2) for x in (dk, dv))
    dq = dq * SIGN  # signed
    dq, dk = (x[..., :HEAD_DIM] for x in (dq, dk))  # unequal
    dv = dv[..., :V_HEAD_DIM]  # unequal
    return dq, dk, dv


def window(q: Tensor, k: Tensor, band: bool | Sequence[int]) -> dict[str, int]:
    """A band as flash kernels take it, from the last row and column on."""
    if isinstance(band, bool):
        return {}
    (lo, hi), rows, cols = band, q.shape[2], k.shape[2]
    left, right = cols - rows - lo if lo > 1 - rows else -1, hi + rows - cols
    return {"window_size_left": left, "window_size_right": right if hi < cols - 1 else -1}


def bias(q: Tensor, k: Tensor, band: bool | Sequence[int]) -> Tensor | None:
    """Return scores to add outside of a band; rows begin at multiples of 16 for CUDA."""
    if isinstance(band, bool):
        return None
    row, col = (torch.arange(x.shape[2], device=q.device) for x in (q, k))
    ahead = torch.nn.functional.pad(col, (0, -len(col) % 16)) - row[:, None]
    mask = torch.zeros(ahead.shape, dtype=q.dtype, device=q.device)
    mask.masked_fill_((ahead < band[0]) | (ahead > band[1]), -torch.inf)
    return mask[:, : len(col)].expand(*q.shape[:2], -1, -1)
