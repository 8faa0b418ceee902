"""Running sums: how they begin, and how shares are added to them."""

from collections.abc import Iterable

import torch
from torch import Tensor

from codegen.torch.parts.merge import wide


def zeros(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Running sums of nothing, in the shape of some tensors."""
    return [torch.zeros_like(x, dtype=wide(x)) for x in tensors]


def add(totals: Iterable[Tensor], shares: Iterable[Tensor]) -> None:
    """Add shares to running sums, in place; where none came, nothing."""
    for total, share in zip(totals, shares, strict=False):
        total += share
