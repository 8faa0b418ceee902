"""Adapts visiting queries, which arrive with (lse, delta), to kernels that need an output."""

from collections.abc import Iterable

import torch
from torch import Tensor


def with_output(queries: Iterable[Tensor]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return (dout, q, out, lse) for visiting queries (dout, q, lse, delta).

    Kernels use `out` only to compute delta, the sum of dout * out along a row, so any `out` with
    the same sum gives the same gradients. The returned `out` is parallel to dout.
    """
    dout, q, lse, delta = queries
    largest = torch.linalg.vector_norm(dout, torch.inf, -1, True, dtype=delta.dtype)
    unit = dout / largest  # so that squares do not underflow
    out = unit * (delta / largest / (unit * unit).sum(dim=-1, keepdim=True))
    return dout, q, out.nan_to_num(0.0, 0.0, 0.0), lse
