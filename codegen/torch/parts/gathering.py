"""Everybody's tokens for everybody, and the sums for them back."""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup


def gather(x: Tensor, group: ProcessGroup) -> Tensor:
    """The tokens of all ranks of the group, one rank after the other."""
    parts = x.new_empty((group.size() * x.shape[0], *x.shape[1:]))
    dist.all_gather_into_tensor(parts, x.contiguous(), group=group)
    return torch.cat(parts.chunk(group.size()), 2)


def reduce(x: Tensor, group: ProcessGroup) -> Tensor:
    """The sum over the group of what was computed for our tokens."""
    parts = torch.cat(x.chunk(group.size(), 2))
    own = torch.empty_like(parts.chunk(group.size())[0])
    dist.reduce_scatter_tensor(own, parts, group=group)
    return own
