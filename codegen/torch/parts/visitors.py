"""The backward pass of queries to which only STATS = (lse, delta) came, and not their output."""

from collections.abc import Iterable

import torch
from torch import Tensor


def with_output(queries: Iterable[Tensor]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(dout, q, out, lse) of (dout, q, lse, delta); of out only the sum of dout * out counts."""
    dout, q, lse, delta = queries
    largest = torch.linalg.vector_norm(dout, torch.inf, -1, True, dtype=delta.dtype)
    unit = dout / largest  # no square of it is too small
    out = unit * (delta / largest / (unit * unit).sum(dim=-1, keepdim=True))
    return dout, q, out.nan_to_num(0.0, 0.0, 0.0), lse
