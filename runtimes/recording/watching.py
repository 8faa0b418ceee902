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
    """Returns the pairs that a kernel call computes: all, those below the diagonal, or a band."""
    if isinstance(band, bool):
        band = (-rows, 0) if band else (-rows, columns)
    low, high = band
    i = np.arange(rows)
    return int(np.maximum(np.minimum(i + high + 1, columns) - np.maximum(i + low, 0), 0).sum())


# Of each collective, the numbers that one rank sends another.
SIZES: dict[str, Callable[..., int]] = {
    "all_to_all_single": lambda output, input, *_, group, **__: input.numel() // group.size(),
    "all_gather_into_tensor": lambda output, input, **_: input.numel(),
    "reduce_scatter_tensor": lambda output, input, **_: output.numel(),
    "broadcast": lambda tensor, **_: tensor.numel(),
    "reduce": lambda tensor, **_: tensor.numel(),
}


class Watching:
    """A `torch.distributed` that notes when messages leave and when they have come."""

    def __init__(self, plain: Any) -> None:
        self.plain = plain

    def __getattr__(self, name: str) -> Any:
        if name in SIZES:
            return partial(self._collective, name)
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

    def _collective(self, name: str, *args: Any, **rest: Any) -> Any:
        """Runs a collective, waits for it, and notes what it brought and sent."""
        began, notes = perf_counter(), HERE.notes
        work = getattr(self.plain, name)(*args, **rest)
        if notes is None:
            return work
        if work is not None:
            work.wait()
        size = SIZES[name](*args, **rest)
        for kind, peer in self._messages(**rest):
            notes.append(Note(HERE.backward, kind, peer, size, began, perf_counter()))
        return work if rest.get("async_op") else None

    def _messages(
        self, group: Any, group_src: int | None = None, group_dst: int | None = None, **_: Any
    ) -> list[tuple[int, int]]:
        """(kind, rank at the other end) of this rank's messages, with a root or among all."""
        own, ranks = self.plain.get_rank(), self.plain.get_process_group_ranks(group)
        others = [rank for rank in ranks if rank != own]
        if group_src is group_dst is None:
            return [(kind, rank) for rank in others for kind in (SENT, CAME)]
        root = ranks[group_dst if group_src is None else group_src]
        if own != root:
            return [(SENT if group_src is None else CAME, root)]
        return [(CAME if group_src is None else SENT, rank) for rank in others]


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
