"""Fused attention of a rectangle of queries and keys that is full or causal."""

from typing import Any

import torch
from torch import Tensor

from codegen.torch.parts.merge import padded, wide

SCALE, SIGN = 1.0, 1
HEAD_DIM = V_HEAD_DIM = 1 << 30

# ---- Kernels: fused attention that returns, and takes back, the log-sum-exp of its scores.

aten = torch.ops.aten
on_cpu = aten._scaled_dot_product_flash_attention_for_cpu
on_cpu_backward = aten._scaled_dot_product_flash_attention_for_cpu_backward
efficient = aten._scaled_dot_product_efficient_attention


def attend(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
    """Attention of some queries to some keys: output, and log-sum-exp [batch, heads, rows, 1]."""
    q = q * SIGN  # signed
    q, k, v = padded(q, k, v)  # unequal
    if q.is_cpu:  # in wide types, because this kernel returns its output in the type of q
        q, k, v = (x.to(wide(x)) for x in (q, k, v))
        out, lse = on_cpu(q, k, v, 0.0, causal, scale=SCALE)
    elif q.element_size() == 2:
        out, lse, *_ = aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal, scale=SCALE)
    else:
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
        out, lse, *_ = efficient(q, k, v, None, True, 0.0, causal, scale=SCALE)
    out = out[..., :V_HEAD_DIM]  # unequal
    return out, lse[..., : q.shape[2], None]


def attend_backward(dout: Any, q: Any, out: Any, lse: Any, k: Any, v: Any, causal: bool) -> Any:
    """The share of these keys in dq, and of these queries in dk and dv; out and lse are final."""
    q = q * SIGN  # signed
    dout, q, k, v, out = padded(dout, q, k, v, out)  # unequal
    rows, cols, heads, lse = q.shape[2], k.shape[2], k.shape[1], lse[..., 0].contiguous()
    dout, q, k, v, out = (x.to(wide(x) if x.is_cpu else q.dtype) for x in (dout, q, k, v, out))
    if q.is_cpu:
        dq, dk, dv = on_cpu_backward(dout, q, k, v, out, lse, 0.0, causal, scale=SCALE)
    elif q.element_size() == 2:
        seed = torch.zeros(2, dtype=torch.uint64, device=q.device)
        dq, dk, dv = aten._scaled_dot_product_flash_attention_backward(
            dout, q, k, v, out, lse, None, None, rows, cols, 0.0, causal, seed, seed[0], scale=SCALE
        )  # fmt: skip
    else:
        lse = torch.nn.functional.pad(lse, (0, -rows % 32), value=torch.inf)
        seed = torch.zeros((), dtype=torch.int64, device=q.device)
        k, v = (x.repeat_interleave(q.shape[1] // heads, 1) for x in (k, v))
        dq, dk, dv, _ = aten._scaled_dot_product_efficient_attention_backward(
            dout, q, k, v, None, out, lse, seed, seed, 0.0, [True, True, True, False], causal,
            scale=SCALE,
        )  # fmt: skip
        dk, dv = (x.unflatten(1, (heads, -1)).sum(2) for x in (dk, dv))
    dq = dq * SIGN  # signed
    dq, dk = (x[..., :HEAD_DIM] for x in (dq, dk))  # unequal
    dv = dv[..., :V_HEAD_DIM]  # unequal
    return dq, dk, dv
