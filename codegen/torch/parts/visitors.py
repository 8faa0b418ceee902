"""The backward pass of queries to which only STATS = (lse, delta) came, and not their output."""

from collections.abc import Iterable

import torch
from torch import Tensor


def with_output(queries: Iterable[Tensor]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(dout, q, out, lse) of (dout, q, lse, delta); of out only the sum of dout * out counts."""
    dout, q, lse, delta = queries
    norm = torch.linalg.vector_norm(dout, dim=-1, keepdim=True, dtype=torch.float64)
    out = dout * (delta / norm / norm).nan_to_num(0.0, 0.0, 0.0).to(delta.dtype)
    return dout, q, out, lse
