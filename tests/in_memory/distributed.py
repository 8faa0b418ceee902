"""Stands in for `torch.distributed` in an emitted program whose ranks are threads.

    program.dist = memory_dist

Groups in memory are served here; whatever else is asked, and collectives of every other group, go
to torch.distributed itself. A thread joins a network with `joined(network, rank)`.
"""

import functools
import inspect
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
import torch.distributed as real

from in_memory.network import GROUPS, MemoryGroup, Network, Work, contiguous, told


class Here(threading.local):
    """The world of this thread, where it is a rank."""

    world: MemoryGroup | None = None


HERE = Here()


@contextmanager
def joined(network: Network, rank: int) -> Iterator[MemoryGroup]:
    """Be a rank of a network in this thread; gives the group of all ranks."""
    HERE.world = network.group(rank)
    try:
        yield HERE.world
    finally:
        HERE.world = None


def installed(program: ModuleType) -> ModuleType:
    """Let an emitted program take groups in memory, too."""
    names = vars(program)
    if names["dist"] is real:
        names["dist"] = sys.modules[__name__]
        for name in ("group_of", "group_named"):  # programs by tables have both
            if name in names:
                names[name] = functools.partial(named, names[name])
                break
    return program


def named(otherwise: Callable[[str], Any], name: str) -> Any:
    """The group of a name."""
    return GROUPS[name] if name in GROUPS else otherwise(name)


def __getattr__(name: str) -> Any:
    return getattr(real, name)


class _Groups:
    """Stands for `torch.distributed.group`."""

    @property
    def WORLD(self) -> Any:
        return HERE.world or real.group.WORLD


group = _Groups()


class _Internals:
    """Stands for `torch.distributed.distributed_c10d`."""

    def __getattr__(self, name: str) -> Any:
        return getattr(real.distributed_c10d, name)

    def _get_process_group_store(self, group: Any) -> Any:
        if isinstance(group, MemoryGroup):
            return real.PrefixStore(f"{group.key}/", group.network.store)
        return real.distributed_c10d._get_process_group_store(group)


distributed_c10d = _Internals()


def _in_memory(function: Callable[..., Any]) -> Callable[..., Any]:
    """For groups in memory this function, for others the one of its name in torch.distributed."""
    takes = inspect.signature(function)

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        given = takes.bind_partial(*args, **kwargs).arguments
        chosen = given.get("group") or HERE.world
        if not isinstance(chosen, MemoryGroup):
            return getattr(real, function.__name__)(*args, **kwargs)
        return function(**given | {"group": chosen})

    return called


# ---- who there is


def init_process_group(*args: Any, **kwargs: Any) -> None:
    """Nothing, in a thread that is a rank: its world is there."""
    if HERE.world is None:
        real.init_process_group(*args, **kwargs)


def destroy_process_group(*args: Any, **kwargs: Any) -> None:
    """Nothing, in a thread that is a rank: its world ends with the run."""
    if HERE.world is None:
        real.destroy_process_group(*args, **kwargs)


def is_initialized() -> bool:
    """True in a thread that is a rank."""
    return HERE.world is not None or bool(real.is_initialized())


@_in_memory
def get_rank(group: Any = None) -> int:
    """The place of this rank in a group."""
    return int(group.rank())


@_in_memory
def get_world_size(group: Any = None) -> int:
    """The number of ranks of a group."""
    return int(group.size())


def get_process_group_ranks(group: Any) -> list[int]:
    """The ranks of a group by their numbers in the world."""
    if isinstance(group, MemoryGroup):
        return list(group.ranks)
    return list(real.get_process_group_ranks(group))


def new_group(ranks: Sequence[int] | None = None, *args: Any, **kwargs: Any) -> Any:
    """A group of some ranks of the world, sorted, as torch does; only its members need call it."""
    if HERE.world is None:
        return real.new_group(ranks, *args, **kwargs)
    if not kwargs.get("use_local_synchronization"):
        HERE.world.barrier().wait()
    members = sorted(HERE.world.ranks if ranks is None else ranks)
    if HERE.world.me not in members:
        return real.GroupMember.NON_GROUP_MEMBER
    return HERE.world.network.group(HERE.world.me, members)


# ---- messages


@dataclass(frozen=True)
class P2POp:
    """One message of a batch, at one of its ends; the peer is counted in the group."""

    op: Callable[..., Any]
    tensor: Any
    group: MemoryGroup
    group_peer: int

    def start(self) -> Any:
        """Start the message."""
        begin = self.group.send if self.op is real.isend else self.group.receive
        return begin(self.tensor, self.group_peer)


def batch_isend_irecv(ops: list[P2POp]) -> list[Any]:
    """Start some messages."""
    if not ops:
        raise IndexError("batch_isend_irecv of no message: torch fails there too")
    return [op.start() for op in ops]


# ---- collectives


def _started(work: Work, async_op: bool) -> Work | None:
    if async_op:
        return work
    work.wait()
    return None


@_in_memory
def all_to_all_single(
    output: Any,
    input: Any,
    output_split_sizes: list[int] | None = None,
    input_split_sizes: list[int] | None = None,
    group: Any = None,
    async_op: bool = False,
) -> Any:
    """Part n of every rank's input to rank n, in the order of the senders."""
    contiguous(input, "all_to_all")
    parts, place = _parts(input, input_split_sizes, group.size()), group.rank()
    room = [x.numel() for x in _parts(output, output_split_sizes, group.size())]

    def finish(given: list[Any]) -> None:
        own = [shares[place] for shares in given]
        if [x.numel() for x in own] != room:
            raise ValueError(f"all_to_all: {[x.numel() for x in own]} numbers come, not {room}")
        _write(output, own, "all_to_all")

    given = [x.detach().clone() for x in parts]
    work = group.start("all_to_all", given, finish, [x.nbytes for x in parts], output)
    return _started(work, async_op)


@_in_memory
def all_gather_into_tensor(
    output_tensor: Any, input_tensor: Any, group: Any = None, async_op: bool = False
) -> Any:
    """Every rank's tensor, one after the other along the first dimension, as gloo wants it."""
    _refuse_other_rows(input_tensor, output_tensor, group.size())

    def finish(given: list[Any]) -> None:
        _write(output_tensor, given, "all_gather")

    shares = [input_tensor.nbytes] * group.size()
    work = group.start("all_gather", input_tensor, finish, shares, output_tensor)
    return _started(work, async_op)


@_in_memory
def reduce_scatter_tensor(
    output: Any,
    input: Any,
    op: Any = real.ReduceOp.SUM,
    group: Any = None,
    async_op: bool = False,
) -> Any:
    """The sum of part n of every rank's input to rank n, parts along the first dimension."""
    _refuse_other_rows(output, input, group.size())
    size, place = group.size(), group.rank()

    def finish(given: list[Any]) -> None:
        own = [x.reshape(size, -1)[place] for x in given]
        _write(output, [_reduced(own, op)], "reduce_scatter")

    work = group.start("reduce_scatter", input, finish, [input.nbytes // size] * size, output)
    return _started(work, async_op)


all_gather_single, reduce_scatter_single = all_gather_into_tensor, reduce_scatter_tensor


@_in_memory
def all_reduce(
    tensor: Any, op: Any = real.ReduceOp.SUM, group: Any = None, async_op: bool = False
) -> Any:
    """The sum of every rank's tensor, or another reduction, to all."""
    copy = tensor.detach().clone()
    work = group.start(
        "all_reduce",
        copy,
        lambda given: tensor.copy_(_reduced(given, op)),
        [tensor.nbytes] * group.size(),
        tensor,
    )
    return _started(work, async_op)


@_in_memory
def broadcast(
    tensor: Any, src: Any = None, group: Any = None, async_op: bool = False, group_src: Any = None
) -> Any:
    """The tensor of one rank to all others; `group_src` counts in the group."""
    place = group_src if src is None else group.ranks.index(src)
    own = place == group.rank()
    work = group.start(
        "broadcast",
        tensor,
        lambda given: None if own else tensor.copy_(given[place]),
        [tensor.nbytes] * group.size() if own else [],
        None if own else tensor,
    )
    return _started(work, async_op)


@_in_memory
def reduce(
    tensor: Any,
    dst: Any = None,
    op: Any = real.ReduceOp.SUM,
    group: Any = None,
    async_op: bool = False,
    group_dst: Any = None,
) -> Any:
    """The sum of every rank's tensor to one of them; `group_dst` counts in the group."""
    place = group_dst if dst is None else group.ranks.index(dst)

    def finish(given: list[Any]) -> None:
        if place == group.rank():
            tensor.copy_(_reduced(given, op))

    shares = [tensor.nbytes if n == place else None for n in range(group.size())]
    return _started(group.start("reduce", tensor, finish, shares), async_op)


@_in_memory
def barrier(group: Any = None, async_op: bool = False, device_ids: Any = None) -> Any:
    """Nobody goes on before all are here."""
    return _started(group.barrier(), async_op)


@_in_memory
def all_gather(
    tensor_list: list[Any], tensor: Any, group: Any = None, async_op: bool = False
) -> Any:
    """Every rank's tensor to all; what programs compare so is no message of a plan."""

    def finish(given: list[Any]) -> None:
        for own, came in zip(tensor_list, given, strict=True):
            own.copy_(came)

    return _started(group.start("all_gather", tensor, finish), async_op)


@_in_memory
def all_gather_object(object_list: list[Any], obj: Any, group: Any = None) -> None:
    """Every rank's object to all."""

    def finish(given: list[Any]) -> None:
        object_list[:] = [x for (x,) in given]

    group.start("all_gather_object", (obj,), finish).wait()


def _parts(tensor: Any, sizes: list[int] | None, ranks: int) -> Sequence[Any]:
    if sizes is None and len(tensor) % ranks:
        raise ValueError(f"all_to_all of {len(tensor)} rows over {ranks} ranks")
    return tuple(torch.split(tensor, sizes or [len(tensor) // ranks] * ranks))


def _refuse_other_rows(part: Any, whole: Any, ranks: int) -> None:
    if whole.shape != (ranks * part.shape[0], *part.shape[1:]):
        raise ValueError(f"{told(whole)} is not {ranks} times {told(part)}")


def _write(output: Any, parts: list[Any], kind: str) -> None:
    flat = torch.cat([x.reshape(-1) for x in parts])
    if (flat.numel(), flat.dtype) != (output.numel(), output.dtype):
        raise ValueError(f"{kind}: {told(flat)} does not fit into {told(output)}")
    output.copy_(flat.view_as(output))


def _reduced(parts: list[Any], op: Any) -> Any:
    """All ranks reduce in the same order, so that they get the same bits."""
    stacked = torch.stack(parts)
    if op == real.ReduceOp.MAX:
        return stacked.amax(0)
    if op != real.ReduceOp.SUM:
        raise ValueError(f"no reduction by {op} in memory")
    return stacked.sum(0)
