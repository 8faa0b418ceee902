"""All-to-all between tokens and heads."""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup


def to_heads(x: Tensor, group: ProcessGroup) -> Tensor:
    """All heads of our tokens for our share of the heads, of all tokens of the group."""
    return torch.cat(swap(x.chunk(group.size(), 1), group), 2)


def to_tokens(x: Tensor, group: ProcessGroup) -> Tensor:
    """The inverse of to_heads."""
    return torch.cat(swap(x.chunk(group.size(), 2), group), 1)


def swap(parts: tuple[Tensor, ...], group: ProcessGroup) -> tuple[Tensor, ...]:
    """Part i to rank i of the group; what all of them have for us."""
    sent = torch.stack(parts)
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent, group=group)
    return (*received,)
