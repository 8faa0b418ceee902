"""Merges partial attention of the same queries."""

from functools import cache
from importlib import import_module
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any, no_type_check

import torch
from torch import Tensor

HEAD_DIM = V_HEAD_DIM = 0


def accum_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype of partial results."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def merge(out: Tensor, lse: Tensor, part: Tensor, part_lse: Tensor) -> None:
    """Merge partial attention into `out` and `lse` in place; lse is -inf for rows without keys."""
    if out.is_cuda and triton:
        return merge_fused(out, lse, part, part_lse)
    out.lerp_(part.to(out.dtype), torch.sigmoid(part_lse - lse).nan_to_num(0.0))
    lse.copy_(torch.logaddexp(lse, part_lse))


triton: Any = import_module("triton") if find_spec("triton") else None  # part of torch for GPUs
tl: Any = import_module("triton.language") if triton else SimpleNamespace(constexpr=int)


def merge_fused(out: Tensor, lse: Tensor, part: Tensor, part_lse: Tensor) -> None:
    """Merge in one kernel, which reads each input once and writes each result once."""
    part = part if part.stride(3) == 1 else part.contiguous()
    part_lse = part_lse.expand_as(lse)  # sinks have one per head
    batch, heads, tokens, dim = out.shape
    rows, width = 16, triton.next_power_of_2(dim)
    strides = [n for x in (out, lse, part, part_lse) for n in x.stride()[:3]]
    grid = triton.cdiv(tokens, rows), batch * heads
    if out.numel():
        with torch.cuda.device_of(out):
            sizes = heads, tokens, dim, *strides, rows, width
            merge_kernel()[grid](out, lse, part, part_lse, *sizes)


@cache
def merge_kernel() -> Any:
    return triton.jit(merge_rows)


@no_type_check
def merge_rows(out, lse, part, part_lse, heads, tokens, dim, out_b, out_h, out_t, lse_b, lse_h,
               lse_t, part_b, part_h, part_t, new_b, new_h, new_t, ROWS: tl.constexpr,
               WIDTH: tl.constexpr):  # fmt: skip
    """Merge ROWS rows of one head of one batch entry."""
    batch, head = (tl.program_id(1) // heads).to(tl.int64), (tl.program_id(1) % heads).to(tl.int64)
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    col = tl.arange(0, WIDTH)[None, :]
    valid_rows, valid = row < tokens, (row < tokens)[:, None] & (col < dim)
    lse_at = lse + batch * lse_b + head * lse_h + row * lse_t
    old = tl.load(lse_at, mask=valid_rows, other=0.0)
    new = tl.load(part_lse + batch * new_b + head * new_h + row * new_t, mask=valid_rows, other=0.0)
    top = tl.maximum(old, new.to(old.dtype))
    top = tl.where(top == float("-inf"), 0.0, top)
    share = tl.exp(new.to(old.dtype) - top)
    total = tl.exp(old - top) + share  # 0 if neither saw any key
    divisor = tl.where(total > 0, total, 1.0)
    share = (share / divisor)[:, None]
    out_at = out + batch * out_b + head * out_h + row[:, None] * out_t + col
    old_out = tl.load(out_at, mask=valid, other=0.0)
    part_at = part + batch * part_b + head * part_h + row[:, None] * part_t + col
    part_out = tl.load(part_at, mask=valid, other=0.0).to(old_out.dtype)
    tl.store(out_at, old_out + share * (part_out - old_out), mask=valid)
    tl.store(lse_at, tl.where(total > 0, top + tl.log(divisor), float("-inf")), mask=valid_rows)


def pad_dims(*tensors: Tensor) -> list[Tensor]:
    """Pad tensors to the larger head dimension: kernels need q, k and v of the same width."""
    size = max(HEAD_DIM, V_HEAD_DIM)
    return [torch.nn.functional.pad(x, (0, max(0, size - x.shape[3]))) for x in tensors]
