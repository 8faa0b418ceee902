"""Fused attention of a rectangle that is full, causal or a band: for masks with windows.

Instead of `kernels`, under the same names.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from codegen.torch.parts.merge import wide

SCALE = 1.0

# ---- Kernels: fused attention that returns, and takes back, the log-sum-exp of its scores.

aten = torch.ops.aten


def attend(q: Tensor, k: Tensor, v: Tensor, band: bool | Sequence[int]) -> tuple[Tensor, Tensor]:
    """Attention of some queries to some keys: output, and log-sum-exp [batch, heads, rows, 1]."""
    if not q.is_cpu and q.element_size() == 2:
        causal, window = flash_form(q, k, band)
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        out, lse, *_ = aten._flash_attention_forward(
            q, k, v, None, None, q.shape[1], k.shape[1], 0.0, causal, False, **window
        )
        return out.transpose(1, 2), lse[..., None]
    parts = [
        attend_strip(q[:, :, rows], k[:, :, cols], v[:, :, cols], causal, bias)
        for rows, cols, causal, bias in strips(q, k, band)
    ]
    outs, lses = zip(*parts, strict=True)
    return torch.cat(outs, 2), torch.cat(lses, 2)[..., None]


def attend_backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    band: bool | Sequence[int],
) -> tuple[Tensor, Tensor, Tensor]:
    """The share of these keys in dq, and of these queries in dk and dv; out and lse are final."""
    lse = lse[..., 0]
    if not q.is_cpu and q.element_size() == 2:
        causal, window = flash_form(q, k, band)
        rows, cols = q.shape[2], k.shape[2]
        dout, q, k, v, out = (x.to(q.dtype).transpose(1, 2) for x in (dout, q, k, v, out))
        seed = torch.zeros(2, dtype=torch.uint64, device=q.device)
        dq, dk, dv = aten._flash_attention_backward(
            dout, q, k, v, out, lse.contiguous(), None, None, rows, cols, 0.0, causal, seed,
            seed[0], **window,
        )  # fmt: skip
        return dq.transpose(1, 2), dk.transpose(1, 2), dv.transpose(1, 2)
    dqs, dk, dv = [], *(torch.zeros_like(x, dtype=wide(x)) for x in (k, v))
    for rows, cols, causal, bias in strips(q, k, band):
        strip = [x[:, :, rows] for x in (dout, q, out, lse)] + [x[:, :, cols] for x in (k, v)]
        dq, dk_part, dv_part = attend_strip_backward(strip, causal, bias)
        dqs.append(dq)
        dk[:, :, cols] += dk_part
        dv[:, :, cols] += dv_part
    return torch.cat(dqs, 2), dk, dv


def flash_form(q: Tensor, k: Tensor, band: bool | Sequence[int]) -> tuple[bool, dict[str, float]]:
    """If a flash kernel is asked for causal attention, and scale and window, -1 for no bound.

    Its windows count from the last row and the last column, which are in the band.
    """
    if isinstance(band, bool):
        return band, {"scale": SCALE}
    (lo, hi), rows, cols = band, q.shape[2], k.shape[2]
    left = cols - rows - lo if lo > 1 - rows else -1
    right = hi - (cols - rows) if hi < cols - 1 else -1
    return False, {"scale": SCALE, "window_size_left": left, "window_size_right": right}


def strips(
    q: Tensor, k: Tensor, band: bool | Sequence[int], height: int = 512
) -> Iterator[tuple[slice, slice, bool, Tensor | None]]:
    """Some rows at a time with the columns that they see, and what is added to the scores."""
    rows, cols = q.shape[2], k.shape[2]
    if isinstance(band, bool):
        yield slice(rows), slice(cols), band, None
        return
    lo, hi = band
    for first in range(0, rows, height):
        last = min(rows, first + height)
        left, right = max(0, first + lo), min(cols, last + hi)
        column = torch.arange(left, right, device=q.device)
        ahead = column - torch.arange(first, last, device=q.device)[:, None]
        bias = torch.zeros(ahead.shape, dtype=wide(q), device=q.device)
        bias.masked_fill_((ahead < lo) | (ahead > hi), -torch.inf)
        yield slice(first, last), slice(left, right), False, bias


def attend_strip(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, bias: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Attention without a flash kernel; lse: [batch, heads, rows]."""
    if q.is_cpu:  # in wide types, because this kernel returns its output in the type of q
        q, k, v = (x.to(wide(x)) for x in (q, k, v))
        out, lse = aten._scaled_dot_product_flash_attention_for_cpu(
            q, k, v, 0.0, causal, attn_mask=bias, scale=SCALE
        )
        return out, lse
    qs, ks, vs = per_kv_head(k, q, k, v)
    out, lse, *_ = aten._scaled_dot_product_efficient_attention(
        qs, ks, vs, padded(bias, qs), True, 0.0, causal, scale=SCALE
    )
    return out.reshape(q.shape), lse[..., : q.shape[2]].reshape(q.shape[:3])


def attend_strip_backward(
    strip: list[Tensor], causal: bool, bias: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients without a flash kernel; strip: dout, q, out, lse, k, v."""
    dout, q, out, lse, k, v = strip
    if q.is_cpu:
        dout, q, k, v, out = (x.to(wide(x)) for x in (dout, q, k, v, out))
        dq, dk, dv = aten._scaled_dot_product_flash_attention_for_cpu_backward(
            dout, q, k, v, out, lse.contiguous(), 0.0, causal, attn_mask=bias, scale=SCALE
        )
        return dq, dk, dv
    lse = torch.nn.functional.pad(lse, (0, -q.shape[2] % 32), value=torch.inf)[..., None]
    seed = torch.zeros((), dtype=torch.int64, device=q.device)
    douts, qs, ks, vs, outs, lses = per_kv_head(k, dout.to(q.dtype), q, k, v, out.to(q.dtype), lse)
    dq, dk, dv, _ = aten._scaled_dot_product_efficient_attention_backward(
        douts, qs, ks, vs, padded(bias, qs), outs, lses[..., 0], seed, seed, 0.0,
        [True, True, True, False], causal, scale=SCALE,
    )  # fmt: skip
    return dq.reshape(q.shape), dk.sum(1).reshape(k.shape), dv.sum(1).reshape(k.shape)


def per_kv_head(k: Tensor, *tensors: Tensor) -> list[Tensor]:
    """A batch entry per KV head, which all its query heads share without a copy."""
    heads = [x.reshape(-1, x.shape[1] // k.shape[1], *x.shape[2:]) for x in tensors]
    group = max(x.shape[1] for x in heads)
    return [x.expand(-1, group, -1, -1) for x in heads]


def padded(bias: Tensor | None, q: Tensor) -> Tensor | None:
    """A bias for every head, its rows a multiple of 16 elements apart, as CUDA kernels read it."""
    if bias is None:
        return None
    room = torch.nn.functional.pad(bias.to(q.dtype), (0, -bias.shape[1] % 16))
    return room[:, : bias.shape[1]].expand(*q.shape[:2], -1, -1)
