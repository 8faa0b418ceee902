"""Running sums: how they begin, and what attention of some queries to some keys adds to them."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from codegen.torch.parts.merge import wide
from codegen.torch.parts.stubs import attend, attend_backward, merge


def zeros(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Running sums of nothing, in the shape of some tensors."""
    return [torch.zeros_like(x, dtype=wide(x)) for x in tensors]


def add(totals: Iterable[Tensor], shares: Iterable[Tensor]) -> None:
    """Add shares to running sums, in place; where none came, nothing."""
    for total, share in zip(totals, shares, strict=False):
        total += share


def add_attention(results: Any, queries: Any, kv: Any, rows: Any, cols: Any, band: Any) -> None:
    """Attend some rows of queries to some columns of keys, ... being all; merge into results."""
    part = attend(*[*(x[:, :, rows] for x in queries), *(x[:, :, cols] for x in kv), band])
    merge(*[*(x[:, :, rows] for x in results), *part])


def add_gradient(dq: Any, dkv: Any, queries: Any, kv: Any, rows: Any, cols: Any, band: Any) -> None:
    """Add the gradients of that attention; queries are dout, q, out and lse."""
    part = attend_backward(*[*(x[:, :, rows] for x in queries), *(x[:, :, cols] for x in kv), band])
    add([*(x[:, :, rows] for x in dq), *(x[:, :, cols] for x in dkv)], part)
