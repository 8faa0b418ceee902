"""Tensors that travel from rank to rank, and lists of them."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from codegen.torch.parts.merge import wide


class exchange:
    """Send tensors to one rank, if any, and receive others like them from another, if any."""

    def __init__(self, tensors: list[Tensor], to: int | None, source: int | None, group: Any):
        self.sent = [] if to is None else [x.contiguous() for x in tensors]
        self.received = [] if source is None else [x.new_empty(x.shape) for x in tensors]
        ops = [dist.P2POp(dist.isend, x, group=group, group_peer=to) for x in self.sent]
        ops += [dist.P2POp(dist.irecv, x, group=group, group_peer=source) for x in self.received]
        self.works = dist.batch_isend_irecv(ops) if ops else []

    def wait(self) -> list[Tensor]:
        for work in self.works:
            work.wait()
        return self.received


def cut(tensors: list[Tensor], tokens: slice) -> list[Tensor]:
    """Some tokens of each tensor."""
    return [x[:, :, tokens] for x in tensors]


def add(totals: list[Tensor], shares: list[Tensor]) -> None:
    """Add to each total its share, in place; nothing if there are none."""
    for total, share in zip(totals, shares, strict=False):
        total += share


def zeros(tensors: list[Tensor]) -> list[Tensor]:
    """Running sums in the shape of some tensors."""
    return [torch.zeros_like(x, dtype=wide(x)) for x in tensors]


def nothing(q: Tensor) -> tuple[Tensor, Tensor]:
    """The output and log-sum-exp of queries that have seen nothing yet."""
    out = torch.zeros_like(q, dtype=wide(q))
    return out, torch.full_like(out[..., :1], -torch.inf)
