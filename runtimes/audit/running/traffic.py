"""Counts the bytes that a torch program sends in collectives and messages of any group.

Every call of torch.distributed passes the dispatcher as an operator of c10d or of its functional
form, in both passes. A collective counts as direct messages with the data that each peer needs; an
all-reduce counts as a reduce-scatter and an all-gather.
"""

from collections import Counter
from importlib import import_module
from typing import Any

import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

LOCAL = "aten", "prim", "prims"  # namespaces of operators that send nothing
Key = tuple[str, int, int]  # pass, source, destination


class Traffic(TorchDispatchMode):  # type: ignore[misc]
    """A `with` block that counts the bytes of this rank by (pass, peer)."""

    def __init__(self) -> None:
        super().__init__()
        self.pass_ = "forward"
        self.sent = Counter[tuple[str, int]]()
        self.unknown = set[str]()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Runs an operator and counts the bytes that it sends."""
        namespace, _, name = str(func).partition(".")
        if "c10d" in namespace:
            self._note(name.partition(".")[0], args)
        elif namespace not in LOCAL and (function := python_of(func)):
            with self:  # operators in Python may send messages
                return function(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))

    def bytes_from(self, rank: int, ranks: list[int]) -> dict[Key, int]:
        """Returns the bytes by (pass, this rank, peer); `ranks` numbers the peers."""
        index_of = {peer: n for n, peer in enumerate(ranks)}
        return {
            (pass_, rank, index_of[peer]): size
            for (pass_, peer), size in self.sent.items()
            if peer in index_of
        }

    def outsiders(self, ranks: list[int]) -> list[int]:
        """Returns the ranks outside a group to which this rank sent messages."""
        return sorted({peer for _, peer in self.sent} - {*ranks})

    def _note(self, name: str, args: tuple[Any, ...]) -> None:
        ranks = _ranks(args)
        if ranks is None:
            return
        rank = dist.get_rank()
        for peer, size in sends(name, args, ranks, rank).items():
            if peer != rank and size:
                self.sent[self.pass_, peer] += size


def sends(name: str, args: tuple[Any, ...], ranks: list[int], rank: int) -> dict[int, int]:
    """Returns the bytes that an operator sends from this rank to each rank of the group."""
    count, first = len(ranks), args[0]
    match name:
        case "send":
            return {ranks[args[2]]: size_of(first)}
        case "allgather_" | "_allgather_base_":
            return dict.fromkeys(ranks, size_of(args[1]))
        case "all_gather_into_tensor":
            return dict.fromkeys(ranks, size_of(first))
        case "reduce_scatter_" | "_reduce_scatter_base_":
            return dict.fromkeys(ranks, size_of(args[1]) // count)
        case "reduce_scatter_tensor":
            return dict.fromkeys(ranks, size_of(first) // count)
        case "allreduce_" | "all_reduce":
            return dict.fromkeys(ranks, 2 * size_of(first) // count)
        case "alltoall_":
            return {peer: size_of(x) for peer, x in zip(ranks, args[1], strict=True)}
        case "alltoall_base_" | "all_to_all_single":
            tensor, splits = (args[1], args[4]) if name == "alltoall_base_" else (first, args[2])
            if not splits:
                return dict.fromkeys(ranks, size_of(tensor) // count)
            row = size_of(tensor) // max(1, sum(splits))
            return {peer: row * n for peer, n in zip(ranks, splits, strict=True)}
        case "broadcast_" | "broadcast":
            root = args[2] if name == "broadcast_" else args[1]
            return dict.fromkeys(ranks, size_of(first)) if ranks[root] == rank else {}
        case "reduce_" | "gather_":
            return {ranks[args[3]]: size_of(args[1] if name == "gather_" else first)}
        case "scatter_":
            return {peer: size_of(x) for peer, x in zip(ranks, (args[1] or [[]])[0], strict=False)}
    return {}


def python_of(func: Any) -> Any:
    """Returns the Python function of a `torch.library.custom_op` operator, otherwise None."""
    try:
        operators: Any = import_module("torch._library.custom_ops").OPDEFS
        return operators[func._schema.name]._init_fn
    except (AttributeError, ImportError, KeyError):
        return None


def size_of(tensors: Any) -> int:
    """Returns the bytes of a tensor, or of all tensors in nested lists."""
    if isinstance(tensors, list | tuple):
        return sum(map(size_of, tensors))
    return int(tensors.numel() * tensors.element_size())


def _ranks(args: tuple[Any, ...]) -> list[int] | None:
    """Returns the ranks of the group among an operator's arguments, or None without a group."""
    for arg in args:
        if "ScriptObject" in type(arg).__name__:
            try:
                return list(dist.get_process_group_ranks(dist.ProcessGroup.unbox(arg)))
            except (RuntimeError, TypeError):
                continue
    names = [arg for arg in args if isinstance(arg, str)]
    for name in names[::-1]:
        try:
            group = dist.distributed_c10d._resolve_process_group(name)
        except (LookupError, RuntimeError, ValueError):
            continue
        return list(dist.get_process_group_ranks(group))
    return None
