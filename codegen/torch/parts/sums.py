"""Accumulators of gradients: zeros at first, to which shares are added."""

from collections.abc import Iterable

import torch
from torch import Tensor

from codegen.torch.parts.merge import wide


def zeros(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Zero accumulators like some tensors, in the type of partial results."""
    return [torch.zeros_like(x, dtype=wide(x)) for x in tensors]


def add(totals: Iterable[Tensor], shares: Iterable[Tensor]) -> None:
    """Add shares to accumulators, in place; where none came, nothing."""
    for total, share in zip(totals, shares, strict=False):
        total += share
