"""Tensors that travel: from rank to rank, and between all ranks of a group."""

from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from codegen.torch.parts.merge import merge, wide

INNER = 1


def wait(message: Any) -> Any:
    """Wait for what a message brings; it holds what was sent until then."""
    message = message or ([], [], list)  # none was sent  # timed
    for work in message[0]:
        work.wait()
    return message[2]()


def exchange(x: Any, to: int, src: int, group: Any, sends: Any = 1, comes: Any = 1) -> Any:  # :on
    """Give tensors to one rank, and receive the like from another."""  # every
    """If `sends`, give tensors to one rank; if `comes`, receive the like from another."""  # some
    sent, received = [t.contiguous() for t in x], [t.new_empty(t.shape) for t in x]  # every
    sent = [t.contiguous() for t in x] if sends else []  # some
    received = [t.new_empty(t.shape) for t in x] if comes else []  # some
    ops = [dist.P2POp(dist.isend, t, group=group, group_peer=to) for t in sent]
    ops += [dist.P2POp(dist.irecv, t, group=group, group_peer=src) for t in received]
    return dist.batch_isend_irecv(ops) if ops else [], sent, lambda: received  # :started


def broadcast(x: Any, root: int, group: Any) -> Any:
    """The tensors of one rank of the group, the root, to all others."""
    own, rules = group.rank() == root, {"group": group, "group_src": root, "async_op": True}
    received = [t.contiguous() if own else t.new_empty(t.shape) for t in x]
    return [dist.broadcast(t, **rules) for t in received], [], lambda: received


def reduction(x: Any, root: int, group: Any) -> Any:
    """The sums of all ranks of the group to one of them, the root; nothing to the others."""
    sent, rules = [t.contiguous() for t in x], {"group": group, "async_op": True}
    works = [dist.reduce(t, group_dst=root, **rules) for t in sent]
    return works, sent, lambda: sent if group.rank() == root else []


def swap(x: Any, split: int, join: int, group: Any) -> Any:
    """Give rank i of the group part i along one axis; join what all gave us along another."""
    sent = [torch.stack(t.chunk(group.size(), split)) for t in x]
    received, rules = [torch.empty_like(t) for t in sent], {"group": group, "async_op": True}
    works = [dist.all_to_all_single(*pair, **rules) for pair in zip(received, sent, strict=True)]
    return works, sent, lambda: [torch.cat([*t], join) for t in received]


def gather(x: Any, group: Any) -> Any:
    """The tokens of all ranks of the group, one rank after the other."""
    n, sent, rules = group.size(), [t.contiguous() for t in x], {"group": group, "async_op": True}
    received = [t.new_empty((n * len(t), *t.shape[1:])) for t in sent]
    works = [dist.all_gather_into_tensor(*y, **rules) for y in zip(received, sent, strict=True)]
    return works, sent, lambda: [torch.cat(t.chunk(n), 2) for t in received]


def reduce(x: Any, group: Any) -> Any:
    """The sums over the group of what was computed for our tokens."""
    n, rules = group.size(), {"group": group, "async_op": True}
    sent = [torch.cat(t.chunk(n, 2)) for t in x]
    received = [torch.empty_like(t.chunk(n)[0]) for t in sent]
    works = [dist.reduce_scatter_tensor(*y, **rules) for y in zip(received, sent, strict=True)]
    return works, sent, lambda: received


def combine(results: Any, group: dist.ProcessGroup) -> list[Tensor]:
    """Merge what the ranks of the group computed for our tokens."""
    outs, lses = (x.chunk(group.size()) for x in wait(swap(results, 2, 0, group)))
    out, lse = outs[0].to(wide(outs[0])), lses[0]
    for part, part_lse in zip(outs[1:], lses[1:], strict=True):
        merge(out, lse, part, part_lse)
    return [out, lse]


@cache
def places_of(group: dist.ProcessGroup) -> tuple[Any, ...]:
    """The groups of this rank along both axes of the mesh, and its coordinates."""
    ranks = torch.tensor(dist.get_process_group_ranks(group)).view(-1, INNER)
    outer, inner = divmod(group.rank(), INNER)
    lines = ranks[:, inner].tolist(), ranks[outer].tolist()
    groups = (dist.new_group(x, use_local_synchronization=True) for x in lines)
    return *groups, outer, inner
