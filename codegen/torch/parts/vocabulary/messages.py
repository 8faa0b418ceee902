"""Messages between ranks: started by one call, waited for by another."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any
from weakref import WeakSet

import torch
import torch.distributed as dist
from torch import Tensor

MESH: tuple[int, ...] = (1,)


# ---- Messages between ranks.


@dataclass
class Message:
    """Tensors under way: what has to end, what must not change before, and what it brings."""

    works: list[Any]
    sent: list[Tensor]
    received: Callable[[], list[Tensor]]


def wait(message: Message | None) -> list[Tensor]:
    """Wait for a message, and return the tensors that it brings; none where there is none."""
    if message is None:
        return []
    for work in message.works:
        work.wait()
    return message.received()


def exchange(
    x: list[Tensor], to: int, source: int, group: Any, sends: bool = True, comes: bool = True
) -> Message:
    """If `sends`, give tensors to one rank; if `comes`, receive the like from another."""
    sent = [(t.contiguous(), to) for t in x] if sends else []
    received = [(t.new_empty(t.shape), source) for t in x] if comes else []
    initialise(group, x[0])
    return start(sent, received, group)


def start(
    sent: list[tuple[Tensor, int]], received: list[tuple[Tensor, int]], group: Any
) -> Message:
    """Give each tensor to a rank, and receive others in the place of some, all in one message."""
    calls = *((dist.isend, *x) for x in sent), *((dist.irecv, *x) for x in received)
    ops = [dist.P2POp(way, t, group=group, group_peer=n) for way, t, n in calls]
    works = dist.batch_isend_irecv(ops) if ops else []
    return Message(works, [t for t, _ in sent], lambda: [t for t, _ in received])


def initialise(group: Any, x: Tensor) -> None:
    """Let all ranks of a group make its first call, before messages that leave some of them out.

    In NCCL that call makes the connections, and it is undefined if ranks are missing.
    """
    if x.is_cuda and group not in initialised:
        dist.all_reduce(x.new_zeros(1), group=group)
        initialised.add(group)


initialised = WeakSet[Any]()


def gather(x: list[Tensor], group: Any) -> Message:
    """Collect the tokens of all ranks of a group, one rank after the other."""
    sent = [t.contiguous() for t in x]
    received = [t.new_empty((group.size() * len(t), *t.shape[1:])) for t in sent]
    call = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # before 2.13
    works = [call(r, s, group=group, async_op=True) for r, s in zip(received, sent, strict=True)]
    return Message(works, sent, lambda: [torch.cat(r.chunk(group.size()), 2) for r in received])


def reduce(x: list[Tensor], group: Any) -> Message:
    """Sum over a group what its ranks computed for our tokens of those gathered."""
    sent = [torch.cat(t.chunk(group.size(), 2)) for t in x]
    received = [torch.empty_like(t.chunk(group.size())[0]) for t in sent]
    call = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor  # before 2.13
    works = [call(r, s, group=group, async_op=True) for r, s in zip(received, sent, strict=True)]
    return Message(works, sent, lambda: received)


def swap(x: list[Tensor], split: int, join: int, group: Any) -> Message:
    """Give rank i of a group part i along one axis; join what all gave us along another."""
    sent = [torch.stack(t.chunk(group.size(), split)) for t in x]
    received = [torch.empty_like(t) for t in sent]
    works = [
        dist.all_to_all_single(r, s, group=group, async_op=True)
        for r, s in zip(received, sent, strict=True)
    ]
    return Message(works, sent, lambda: [torch.cat([*r], join) for r in received])


def broadcast(x: list[Tensor], root: int, group: Any) -> Message:
    """Give the tensors of one rank of a group, the root, to all others."""
    own, rules = group.rank() == root, {"group": group, "group_src": root, "async_op": True}
    received = [t.contiguous() if own else t.new_empty(t.shape) for t in x]
    return Message([dist.broadcast(t, **rules) for t in received], [], lambda: received)


def reduce_to(x: list[Tensor], root: int, group: Any) -> Message:
    """Sum the tensors of all ranks of a group at one of them, the root; the others get none."""
    sent, rules = [t.contiguous() for t in x], {"group": group, "async_op": True}
    works = [dist.reduce(t, group_dst=root, **rules) for t in sent]
    return Message(works, sent, lambda: sent if group.rank() == root else [])


@cache
def along_axes(group: dist.ProcessGroup) -> tuple[list[Any], list[int]]:
    """The groups of this rank along the axes of the mesh, and its coordinates."""
    ranks, rest = torch.tensor(dist.get_process_group_ranks(group)).view(MESH), group.rank()
    groups, at = list[Any](), list[int]()
    for axis, size in enumerate(MESH):
        coordinate, rest = divmod(rest, prod(MESH[axis + 1 :]))
        at.append(coordinate % size)
    for axis in range(len(MESH)):
        line = ranks[tuple(slice(None) if n == axis else x for n, x in enumerate(at))].tolist()
        groups.append(dist.new_group(line, use_local_synchronization=True))
    return groups, at
