"""Tensors that travel: from rank to rank, and between all ranks of a group."""

from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from codegen.torch.parts.merge import merge, wide

INNER = 1


class exchange:
    """If it `sends`, give tensors to one rank; if it `comes`, receive the like from another."""

    def __init__(self, sent: Any, to: int, source: int, group: Any, sends: Any = 1, comes: Any = 1):
        self.sent = [x.contiguous() for x in sent] if sends else []
        self.received = [x.new_empty(x.shape) for x in sent] if comes else []
        ops = [dist.P2POp(dist.isend, x, group=group, group_peer=to) for x in self.sent]
        ops += [dist.P2POp(dist.irecv, x, group=group, group_peer=source) for x in self.received]
        self.works = dist.batch_isend_irecv(ops) if ops else []

    def wait(self) -> list[Tensor]:
        for work in self.works:
            work.wait()
        return self.received


class broadcast(exchange):
    """The tensors of one rank of the group, the root, to all others."""

    def __init__(self, sent: Any, root: int, group: Any):
        sends = group.rank() == root
        self.received = [x.contiguous() if sends else x.new_empty(x.shape) for x in sent]
        options = {"group": group, "group_src": root, "async_op": True}
        self.works = [dist.broadcast(x, **options) for x in self.received]


class reduction(exchange):
    """The sums of all ranks of the group to one of them, the root; nothing to the others."""

    def __init__(self, sums: Any, root: int, group: Any):
        self.sent = [x.contiguous() for x in sums]
        options = {"group": group, "group_dst": root, "async_op": True}
        self.works = [dist.reduce(x, **options) for x in self.sent]
        self.received = self.sent if group.rank() == root else []


class swapping(exchange):
    """`swap` of several tensors, to be waited for."""

    def __init__(self, tensors: Any, split: int, join: int, group: Any):
        self.join = join
        self.sent = [torch.stack(x.chunk(group.size(), split)) for x in tensors]
        self.received = [torch.empty_like(x) for x in self.sent]
        pairs, options = zip(self.received, self.sent, strict=True), {"async_op": True}
        self.works = [dist.all_to_all_single(*x, group=group, **options) for x in pairs]

    def wait(self) -> list[Tensor]:
        return [torch.cat([*x], self.join) for x in super().wait()]


class gathering(exchange):
    """`gather` of several tensors, to be waited for."""

    def __init__(self, tensors: Any, group: Any):
        self.sent, self.many = [x.contiguous() for x in tensors], group.size()
        self.received = [x.new_empty((self.many * len(x), *x.shape[1:])) for x in self.sent]
        pairs, options = zip(self.received, self.sent, strict=True), {"async_op": True}
        self.works = [dist.all_gather_into_tensor(*x, group=group, **options) for x in pairs]

    def wait(self) -> list[Tensor]:
        return [torch.cat(x.chunk(self.many), 2) for x in super().wait()]


class reducing(exchange):
    """`reduce` of several tensors, to be waited for."""

    def __init__(self, sums: Any, group: Any):
        self.sent = [torch.cat(x.chunk(group.size(), 2)) for x in sums]
        self.received = [torch.empty_like(x.chunk(group.size())[0]) for x in self.sent]
        pairs, options = zip(self.received, self.sent, strict=True), {"async_op": True}
        self.works = [dist.reduce_scatter_tensor(*x, group=group, **options) for x in pairs]


def swap(x: Tensor, split: int, join: int, group: ProcessGroup) -> Tensor:
    """Give rank i of the group part i along one axis; join what all gave us along another."""
    sent = torch.stack(x.chunk(group.size(), split))
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent, group=group)
    return torch.cat([*received], join)


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


def combine(out: Tensor, lse: Tensor, group: ProcessGroup) -> tuple[Tensor, Tensor]:
    """Merge what the ranks of the group computed for our tokens."""
    outs, lses = (swap(x, 2, 0, group).chunk(group.size()) for x in (out, lse))
    out, lse = outs[0].to(wide(out)), lses[0]
    for part, part_lse in zip(outs[1:], lses[1:], strict=True):
        merge(out, lse, part, part_lse)
    return out, lse


@cache
def groups_of(group: ProcessGroup) -> tuple[ProcessGroup, ...]:
    """The groups of this rank along both axes of the mesh."""
    ranks = torch.tensor(dist.get_process_group_ranks(group)).view(-1, INNER)
    outer, inner = divmod(group.rank(), INNER)
    column, row = ranks[:, inner].tolist(), ranks[outer].tolist()
    return tuple(dist.new_group(x, use_local_synchronization=True) for x in (column, row))
