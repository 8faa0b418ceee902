"""Messages between ranks: one call starts a message, another call waits for it."""

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
class PendingMessage:
    """Tensors in transit: handles to wait for, sent tensors to keep unchanged, received tensors."""

    works: list[Any]
    sent: list[Tensor]
    received: Callable[[], list[Tensor]]


def wait(message: PendingMessage | None) -> list[Tensor]:
    """Wait for a message and return its tensors; return none if there is no message."""
    if message is None:
        return []
    for work in message.works:
        work.wait()
    return message.received()


def exchange(
    x: list[Tensor], to: int, source: int, group: Any, sends: bool = True, receives: bool = True
) -> PendingMessage:
    """Start sending tensors to one rank if `sends`, and receiving from another if `receives`."""
    sent = [(t.contiguous(), to) for t in x] if sends else []
    received = [(t.new_empty(t.shape), source) for t in x] if receives else []
    initialise(group, x[0])
    return start(sent, received, group)


def start(
    sent: list[tuple[Tensor, int]], received: list[tuple[Tensor, int]], group: Any
) -> PendingMessage:
    """Start sending tensors to ranks, and receiving into others, as one batch."""
    calls = *((dist.isend, *x) for x in sent), *((dist.irecv, *x) for x in received)
    ops = [dist.P2POp(way, t, group=group, group_peer=n) for way, t, n in calls]
    works = dist.batch_isend_irecv(ops) if ops else []
    return PendingMessage(works, [t for t, _ in sent], lambda: [t for t, _ in received])


def initialise(group: Any, x: Tensor) -> None:
    """Let all ranks of a group make a first call together, before messages between some of them.

    In NCCL the first call creates the connections; its behaviour is undefined if ranks are missing.
    """
    if x.is_cuda and group not in initialised:
        dist.all_reduce(x.new_zeros(1), group=group)
        initialised.add(group)


initialised = WeakSet[Any]()


def gather(x: list[Tensor], group: Any) -> PendingMessage:
    """Start an all-gather of tokens within a group, in rank order."""
    sent = [t.contiguous() for t in x]
    received = [t.new_empty((group.size() * len(t), *t.shape[1:])) for t in sent]
    call = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # before 2.13
    works = [call(r, s, group=group, async_op=True) for r, s in zip(received, sent, strict=True)]
    return PendingMessage(
        works, sent, lambda: [torch.cat(r.chunk(group.size()), 2) for r in received]
    )


def reduce(x: list[Tensor], group: Any) -> PendingMessage:
    """Start a reduce-scatter of the sums of gathered tokens to their owners."""
    sent = [torch.cat(t.chunk(group.size(), 2)) for t in x]
    received = [torch.empty_like(t.chunk(group.size())[0]) for t in sent]
    call = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor  # before 2.13
    works = [call(r, s, group=group, async_op=True) for r, s in zip(received, sent, strict=True)]
    return PendingMessage(works, sent, lambda: received)


def swap(x: list[Tensor], split: int, join: int, group: Any) -> PendingMessage:
    """Start an all-to-all: split tensors along one axis, join received parts along another."""
    sent = [torch.stack(t.chunk(group.size(), split)) for t in x]
    received = [torch.empty_like(t) for t in sent]
    works = [
        dist.all_to_all_single(r, s, group=group, async_op=True)
        for r, s in zip(received, sent, strict=True)
    ]
    return PendingMessage(works, sent, lambda: [torch.cat([*r], join) for r in received])


def broadcast(x: list[Tensor], root: int, group: Any) -> PendingMessage:
    """Start a broadcast of the root's tensors to a group."""
    is_root, options = group.rank() == root, {"group": group, "group_src": root, "async_op": True}
    received = [t.contiguous() if is_root else t.new_empty(t.shape) for t in x]
    return PendingMessage([dist.broadcast(t, **options) for t in received], [], lambda: received)


def reduce_to(x: list[Tensor], root: int, group: Any) -> PendingMessage:
    """Start a reduction of tensors to the root of a group; other ranks receive none."""
    sent, options = [t.contiguous() for t in x], {"group": group, "async_op": True}
    works = [dist.reduce(t, group_dst=root, **options) for t in sent]
    return PendingMessage(works, sent, lambda: sent if group.rank() == root else [])


@cache
def along_axes(group: dist.ProcessGroup) -> tuple[list[Any], list[int]]:
    """Return the groups of this rank along the axes of the mesh, and its coordinates."""
    mesh, rank = torch.tensor(dist.get_process_group_ranks(group)).view(MESH), group.rank()
    at = [rank // prod(MESH[axis + 1 :]) % size for axis, size in enumerate(MESH)]
    groups = list[Any]()
    for axis in range(len(MESH)):
        line = mesh[tuple(slice(None) if n == axis else x for n, x in enumerate(at))].tolist()
        groups.append(dist.new_group(line, use_local_synchronization=True))
    return groups, at
