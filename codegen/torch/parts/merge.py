"""Partial results: their type, and how two of them for the same queries become one."""

import torch
from torch import Tensor

HEAD_DIM = V_HEAD_DIM = 0


def wide(x: Tensor) -> torch.dtype:
    """The type of partial results."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def merge(out: Tensor, lse: Tensor, part: Tensor, part_lse: Tensor) -> None:
    """Add a part to the running output of the same queries, in place; lse -inf: nothing seen."""
    out.lerp_(part.to(out.dtype), torch.sigmoid(part_lse - lse).nan_to_num(0.0))
    lse.copy_(torch.logaddexp(lse, part_lse))


def padded(*tensors: Tensor) -> list[Tensor]:
    """Tensors of the larger of both dimensions: kernels take queries and values of the same."""
    size = max(HEAD_DIM, V_HEAD_DIM)
    return [torch.nn.functional.pad(x, (0, max(0, size - x.shape[3]))) for x in tensors]
