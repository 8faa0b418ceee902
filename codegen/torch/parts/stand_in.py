"""Replaces the output in a backward pass to which only STATS = (lse, delta) travelled."""

import torch
from torch import Tensor


def stand_in(dout: Tensor, delta: Tensor) -> Tensor:
    """A vector whose product with dout is delta [.., rows, 1]: all that kernels need of out."""
    dout = dout.to(delta.dtype)
    tiny = torch.finfo(delta.dtype).tiny
    largest = dout.abs().amax(dim=-1, keepdim=True).clamp_min(tiny)
    unit = dout / largest  # its square is in range where that of dout is not
    squares = (unit * unit).sum(dim=-1, keepdim=True)
    return unit * (delta / largest / squares).nan_to_num(0.0, 0.0, 0.0)
