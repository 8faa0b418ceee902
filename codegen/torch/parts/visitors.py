"""Visiting queries that bring STATS = (lse, delta), for kernels that take an output instead."""

from collections.abc import Iterable

import torch
from torch import Tensor


def with_output(queries: Iterable[Tensor]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(dout, q, out, lse) of visiting queries (dout, q, lse, delta).

    Kernels take `out` to compute delta, the sum of dout * out along a row, and read it for nothing
    else: any `out` with the same sum gives the same gradients. This one is along dout.
    """
    dout, q, lse, delta = queries
    largest = torch.linalg.vector_norm(dout, torch.inf, -1, True, dtype=delta.dtype)
    unit = dout / largest  # no square of it is too small
    out = unit * (delta / largest / (unit * unit).sum(dim=-1, keepdim=True))
    return dout, q, out.nan_to_num(0.0, 0.0, 0.0), lse
