"""watch(program)   an emitted torch program leaves notes of its kernel calls and messages.

Each message has a thread that waits for it, so its end is noted when it is done.
"""

import threading
from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from time import perf_counter
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch.distributed as dist

from planner.errors import RingloomError

KERNEL, SENT, CAME = range(3)
KERNELS = ("attend", "attend_backward")
LOCK = threading.Lock()


class Note(NamedTuple):
    """A kernel call of so many pairs and heads, or so many numbers to or from a rank."""

    backward: float
    kind: float
    peer: float  # -1 of kernel calls
    size: float
    start: float
    end: float


class Here(threading.local):
    """Notes of the rank of this thread; None while nothing is recorded."""

    notes: list[Note] | None = None
    backward = False


HERE = Here()


def watch(program: ModuleType) -> None:
    """Wraps the kernels and messages of a program, so that they leave notes; idempotent."""
    names = vars(program)
    with LOCK:
        if isinstance(names["dist"], Watching):
            return
        names["dist"] = Watching(names["dist"])
        for name in KERNELS:
            if name in names:
                names[name] = partial(_kernel, names[name], name == "attend_backward")
        if "backward" in names:
            names["backward"] = partial(_backward, names["backward"])


def _backward(plain: Callable[..., Any], *args: Any) -> Any:
    HERE.backward = True
    try:
        return plain(*args)
    finally:
        HERE.backward = False


def _kernel(plain: Callable[..., Any], backward: bool, *args: Any) -> Any:
    began = perf_counter()
    result = plain(*args)
    if HERE.notes is not None:
        q, k = (args[1], args[4]) if backward else args[:2]
        size = pairs(q.shape[2], k.shape[2], args[-1]) * prod(q.shape[:2])
        HERE.notes.append(Note(backward, KERNEL, -1, size, began, perf_counter()))
    return result


def pairs(rows: int, columns: int, band: bool | Sequence[int]) -> int:
    """The pairs that a kernel call computes: all, those below the diagonal, or a band."""
    if isinstance(band, bool):
        band = (-rows, 0) if band else (-rows, columns)
    low, high = band
    i = np.arange(rows)
    return int(np.maximum(np.minimum(i + high + 1, columns) - np.maximum(i + low, 0), 0).sum())


class Watching:
    """A `torch.distributed` that notes when messages leave and when they have come."""

    def __init__(self, plain: Any) -> None:
        self.plain = plain

    def __getattr__(self, name: str) -> Any:
        return getattr(self.plain, name)

    def batch_isend_irecv(self, ops: list[Any]) -> list[Any]:
        """Start some messages, each with a thread that waits for it."""
        began, notes = perf_counter(), HERE.notes
        works = list(self.plain.batch_isend_irecv(ops))
        if notes is None:
            return works
        if len(works) != len(ops):
            raise RingloomError("cannot record: this backend waits for messages all together")
        kinds = [SENT if op.op.__name__ == "isend" else CAME for op in ops]
        peers = [self.plain.get_process_group_ranks(op.group)[op.group_peer] for op in ops]
        return [
            Watched(work, notes, (HERE.backward, kind, peer, op.tensor.numel(), began))
            for work, op, kind, peer in zip(works, ops, kinds, peers, strict=True)
        ]

    def all_to_all_single(self, output: Any, input: Any, *splits: Any, **rest: Any) -> Any:
        """Every rank's share to every other."""
        size = input.numel() // rest["group"].size()
        return self._collective("all_to_all_single", size, output, input, *splits, **rest)

    def all_gather_into_tensor(self, output: Any, input: Any, **rest: Any) -> Any:
        """Every rank's tensor to every other."""
        return self._collective("all_gather_into_tensor", input.numel(), output, input, **rest)

    def reduce_scatter_tensor(self, output: Any, input: Any, **rest: Any) -> Any:
        """Every rank's share of a sum to its owner."""
        return self._collective("reduce_scatter_tensor", output.numel(), output, input, **rest)

    def broadcast(self, tensor: Any, group_src: int, **rest: Any) -> Any:
        """One rank's tensor to all others."""
        own, (root, *others) = self.plain.get_rank(), self._first(group_src, rest["group"])
        told = [(SENT, x) for x in others] if own == root else [(CAME, root)]
        size = tensor.numel()
        return self._noted("broadcast", size, told, tensor, group_src=group_src, **rest)

    def reduce(self, tensor: Any, group_dst: int, **rest: Any) -> Any:
        """The sum of every rank's tensor to one of them."""
        own, (root, *others) = self.plain.get_rank(), self._first(group_dst, rest["group"])
        told = [(CAME, x) for x in others] if own == root else [(SENT, root)]
        size = tensor.numel()
        return self._noted("reduce", size, told, tensor, group_dst=group_dst, **rest)

    def _first(self, place: int, group: Any) -> list[int]:
        """The ranks of a group, one of them first."""
        ranks = list(self.plain.get_process_group_ranks(group))
        return [ranks.pop(place), *ranks]

    def _collective(self, name: str, size: int, *args: Any, **rest: Any) -> Any:
        own, ranks = self.plain.get_rank(), self.plain.get_process_group_ranks(rest["group"])
        told = [(kind, peer) for peer in ranks if peer != own for kind in (SENT, CAME)]
        return self._noted(name, size, told, *args, **rest)

    def _noted(
        self, name: str, size: int, told: Sequence[tuple[int, int]], *args: Any, **rest: Any
    ) -> Any:
        """A collective that is waited for, and notes of what it brought and sent."""
        began = perf_counter()
        work = getattr(self.plain, name)(*args, **rest)
        if work is not None and HERE.notes is not None:
            work.wait()
        if HERE.notes is not None:
            for kind, peer in told:
                HERE.notes.append(Note(HERE.backward, kind, peer, size, began, perf_counter()))
        return None if HERE.notes is not None and not rest.get("async_op") else work


class Watched:
    """A message under way; a thread notes when it is done."""

    def __init__(
        self, work: Any, notes: list[Note], about: tuple[float, float, float, float, float]
    ) -> None:
        self.work, self.notes, self.about = work, notes, about
        self.error: BaseException | None = None
        self.place = len(notes)
        notes.append(Note(*about, about[-1]))  # in the order of the starts
        self.thread = threading.Thread(target=self._watch, daemon=True)
        if isinstance(work, dist.Work):  # any other is done when it is waited for
            self.thread.start()

    def _watch(self) -> None:
        try:
            self.work.wait()
        except BaseException as error:
            self.error = error
        self.notes[self.place] = Note(*self.about, perf_counter())

    def wait(self) -> None:
        """Until the message is done; raises what waiting for it raised."""
        if isinstance(self.work, dist.Work):
            self.thread.join()
        else:
            self._watch()
        if self.error is not None:
            raise self.error
