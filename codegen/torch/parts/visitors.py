"""The backward pass of queries to which only STATS = (lse, delta) came, and not their output."""

import torch
from torch import Tensor

from codegen.torch.parts.kernels import attend_backward


def attend_visitors(
    queries: list[Tensor], k: Tensor, v: Tensor, causal: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of queries (dout, q, lse, delta) and of these keys."""
    dout, q, lse, delta = queries
    return attend_backward(dout, q, stand_in(dout, delta), lse, k, v, causal)


def stand_in(dout: Tensor, delta: Tensor) -> Tensor:
    """A vector whose product with dout is delta [.., rows, 1]: all that kernels need of out."""
    norm = torch.linalg.vector_norm(dout, dim=-1, keepdim=True, dtype=torch.float64)
    return dout * (delta / norm / norm).nan_to_num(0.0, 0.0, 0.0).to(delta.dtype)
