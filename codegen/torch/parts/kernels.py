"""Fused attention of a rectangle of queries and keys that is full or causal."""

import torch
from torch import Tensor

from codegen.torch.parts.merge import wide

SCALE = 1.0

# ---- Kernels: fused attention that returns, and takes back, the log-sum-exp of its scores.

aten = torch.ops.aten
on_cpu = aten._scaled_dot_product_flash_attention_for_cpu
on_cpu_backward = aten._scaled_dot_product_flash_attention_for_cpu_backward


def attend(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
    """Attention of some queries to some keys: output, and log-sum-exp [batch, heads, rows, 1]."""
    if q.is_cpu:  # in wide types, because this kernel returns its output in the type of q
        q, k, v = (x.to(wide(x)) for x in (q, k, v))
        out, lse = on_cpu(q, k, v, 0.0, causal, scale=SCALE)
    elif q.element_size() == 2:
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        out, lse, *_ = aten._flash_attention_forward(
            q, k, v, None, None, q.shape[1], k.shape[1], 0.0, causal, False, scale=SCALE
        )
        out = out.transpose(1, 2)
    else:
        out, lse, *_ = aten._scaled_dot_product_efficient_attention(
            *per_kv_head(k, q, k, v), None, True, 0.0, causal, scale=SCALE
        )
        out, lse = out.reshape(q.shape), lse[..., : q.shape[2]].reshape(q.shape[:3])
    return out, lse[..., None]


def attend_backward(
    dout: Tensor, q: Tensor, out: Tensor, lse: Tensor, k: Tensor, v: Tensor, causal: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """The share of these keys in dq, and of these queries in dk and dv; out and lse are final."""
    rows, cols, lse = q.shape[2], k.shape[2], lse[..., 0].contiguous()
    if q.is_cpu:
        dout, q, k, v, out = (x.to(wide(x)) for x in (dout, q, k, v, out))
        dq, dk, dv = on_cpu_backward(dout, q, k, v, out, lse, 0.0, causal, scale=SCALE)
        return dq, dk, dv
    dout, out = dout.to(q.dtype), out.to(q.dtype)
    if q.element_size() == 2:
        dout, q, k, v, out = (x.transpose(1, 2) for x in (dout, q, k, v, out))
        seed = torch.zeros(2, dtype=torch.uint64, device=q.device)
        dq, dk, dv = aten._flash_attention_backward(
            dout, q, k, v, out, lse, None, None, rows, cols, 0.0, causal, seed, seed[0], scale=SCALE
        )
        return dq.transpose(1, 2), dk.transpose(1, 2), dv.transpose(1, 2)
    lse = torch.nn.functional.pad(lse, (0, -rows % 32), value=torch.inf)[..., None]
    seed = torch.zeros((), dtype=torch.int64, device=q.device)
    douts, qs, ks, vs, outs, lses = per_kv_head(k, dout, q, k, v, out, lse)
    dq, dk, dv, _ = aten._scaled_dot_product_efficient_attention_backward(
        douts, qs, ks, vs, None, outs, lses[..., 0], seed, seed, 0.0, [True, True, True, False],
        causal, scale=SCALE,
    )  # fmt: skip
    return dq.reshape(q.shape), dk.sum(1).reshape(k.shape), dv.sum(1).reshape(k.shape)


def per_kv_head(k: Tensor, *tensors: Tensor) -> list[Tensor]:
    """A batch entry per KV head, which all its query heads share without a copy."""
    heads = [x.reshape(-1, x.shape[1] // k.shape[1], *x.shape[2:]) for x in tensors]
    group = max(x.shape[1] for x in heads)
    return [x.expand(-1, group, -1, -1) for x in heads]
