"""Tensors that travel: from rank to rank, and between all ranks of a group."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any
from weakref import WeakSet

import torch
import torch.distributed as dist
from torch import Tensor

INNER = 1


@dataclass
class Message:
    """A started message: its requests, what it sends, which has to live as long, and its result."""

    works: Sequence[Any]
    sent: Any
    result: Callable[[], Any]


def wait(message: Any) -> Any:
    """Wait until a message has come, and return what it brought."""
    for work in message.works:  # :works
        work.wait()
    return message.result()  # :brought


def exchange(x: Any, to: int, src: int, group: Any, sends: Any = 1, comes: Any = 1) -> Any:  # :on
    """Give tensors to one rank, and receive the like from another."""  # every
    """If `sends`, give tensors to one rank; if `comes`, receive the like from another."""  # some
    sent, received = [t.contiguous() for t in x], [t.new_empty(t.shape) for t in x]  # every
    sent = [t.contiguous() for t in x] if sends else []  # some
    received = [t.new_empty(t.shape) for t in x] if comes else []  # some
    ops = [dist.P2POp(dist.isend, t, group=group, group_peer=to) for t in sent]
    ops += [dist.P2POp(dist.irecv, t, group=group, group_peer=src) for t in received]
    initialise(group, x[0])  # some
    return Message(dist.batch_isend_irecv(ops) if ops else [], sent, lambda: received)  # :started


def initialise(group: Any, x: Tensor) -> None:
    """Let all ranks of a group make its first call, before messages that leave some of them out.

    In NCCL that call makes the connections, and it is undefined if ranks are missing.
    """
    if x.is_cuda and group not in initialised:
        dist.all_reduce(x.new_zeros(1), group=group)
        initialised.add(group)


initialised = WeakSet[Any]()


def broadcast(x: Any, root: int, group: Any) -> Any:
    """The tensors of one rank of the group, the root, to all others."""
    own, rules = group.rank() == root, {"group": group, "group_src": root, "async_op": True}
    received = [t.contiguous() if own else t.new_empty(t.shape) for t in x]
    return Message([dist.broadcast(t, **rules) for t in received], [], lambda: received)


def reduction(x: Any, root: int, group: Any) -> Any:
    """The sums of all ranks of the group to one of them, the root; nothing to the others."""
    sent, rules = [t.contiguous() for t in x], {"group": group, "async_op": True}
    works = [dist.reduce(t, group_dst=root, **rules) for t in sent]
    return Message(works, sent, lambda: sent if group.rank() == root else [])


def swap(x: Tensor, split: int, join: int, group: Any) -> Any:
    """Give rank i of the group part i along one axis; join what all gave us along another."""
    sent = torch.stack(x.chunk(group.size(), split))
    received = torch.empty_like(sent)
    work = dist.all_to_all_single(received, sent, group=group, async_op=True)  # later
    return Message([work], sent, lambda: torch.cat([*received], join))  # later
    dist.all_to_all_single(received, sent, group=group)  # direct
    return torch.cat([*received], join)  # direct


def gather(x: Tensor, group: Any) -> Any:
    """The tokens of all ranks of the group, one rank after the other."""
    sent, received = x.contiguous(), x.new_empty((group.size() * len(x), *x.shape[1:]))
    call = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # before 2.13
    work = call(received, sent, group=group, async_op=True)  # later
    return Message([work], sent, lambda: torch.cat(received.chunk(group.size()), 2))  # later
    call(received, sent, group=group)  # direct
    return torch.cat(received.chunk(group.size()), 2)  # direct


def reduce(x: Tensor, group: Any) -> Any:
    """The sum over the group of what was computed for our tokens."""
    sent = torch.cat(x.chunk(group.size(), 2))
    received = torch.empty_like(sent.chunk(group.size())[0])
    call = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor  # before 2.13
    work = call(received, sent, group=group, async_op=True)  # later
    return Message([work], sent, lambda: received)  # later
    call(received, sent, group=group)  # direct
    return received  # direct


@cache
def places_of(group: dist.ProcessGroup) -> tuple[Any, ...]:
    """The groups of this rank along both axes of the mesh, and its coordinates."""
    ranks = torch.tensor(dist.get_process_group_ranks(group)).view(-1, INNER)
    outer, inner = divmod(group.rank(), INNER)
    lines = ranks[:, inner].tolist(), ranks[outer].tolist()
    groups = (dist.new_group(x, use_local_synchronization=True) for x in lines)
    return *groups, outer, inner
