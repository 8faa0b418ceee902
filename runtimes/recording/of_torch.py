"""Records a run of the emitted torch program without changing its text.

The program's kernel calls and messages are wrapped, and matched with rows of the plan by order and
size: messages between two ranks follow the plan's order and have its sizes, and kernel calls of a
rank follow its order and cover the same number of pairs. Any other program is refused. Each rank
runs the program twice and records the second run.
"""

import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from math import prod
from time import perf_counter
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch.distributed as dist

from ringloom.planner.analysis.tiles import tiles
from ringloom.planner.errors import RingloomError
from ringloom.planner.ir import Plan
from ringloom.planner.plans import Plans
from ringloom.runtimes.arrays import Array
from ringloom.runtimes.recording.events import Events, Kind, Recorded
from ringloom.runtimes.torch.faults import refuse_nan
from ringloom.runtimes.torch.launch import TIMEOUT, Launch, launched, wholes
from ringloom.runtimes.torch.rank import ENTRY_POINTS, Body, Parts

KERNEL, SENT, CAME = range(3)
KERNELS = ("attend", "attend_backward")
LOCK = threading.Lock()


MORE = "\n\nWATCHED = True\n"  # makes the text differ, so that the program gets its own operators


class Note(NamedTuple):
    """A kernel call, with its pairs times heads, or a message, with its elements and peer."""

    backward: float
    kind: float
    peer: float  # -1 for kernel calls
    size: float
    start: float
    end: float


class Row(NamedTuple):
    """A row of the plan: its step, its index among rows of its kind, its pairs or elements.

    `added`: the message carries sums; `home`: of blocks that the sender owns.
    """

    step: int
    number: int
    size: int
    added: bool = False
    home: bool = False


class Here(threading.local):
    """The notes of this thread's rank; None while nothing is recorded."""

    notes: list[Note] | None = None
    backward = False


HERE = Here()


def execute(
    plans: Plans,
    function: str,
    *arrays: Array,
    log: list[Recorded],
    sinks: Array | None = None,
    launch: Launch | None = None,
    timeout: float = TIMEOUT,
) -> list[Array]:
    """Runs plans as `ringloom.runtimes.torch.launch.execute` does, and adds events to the log.

    Raises RingloomError also if the program does not follow the plan row by row.
    """
    if plans.forward is None and plans.first.start:  # its program would fetch them first
        raise RingloomError(
            f"{plans.name}: the backward pass starts with data of the forward pass, so it can only"
            " be recorded together with it: give both plans"
        )
    body = partial(watched, partial(ENTRY_POINTS[function], sinks=sinks))
    program, parts = launched(plans, arrays, body, launch, timeout, MORE)
    tables = [part.pop() for part in parts]
    refuse_nan(arrays, parts)
    notes = [[Note(*row) for row in table.tolist()] for table in tables]
    log += [(plan, events_of(plan, notes)) for plan in plans]
    return wholes(program, function, parts)


def watched(body: Body, program: ModuleType, group: Any, arrays: Sequence[Array]) -> Parts:
    """Runs `body` twice on a rank; returns its results and the notes of the second run: [n, 6]."""
    watch(program)
    body(program, group, arrays)
    program.dist.barrier(group=group)
    HERE.notes = notes = list[Note]()
    try:
        parts = body(program, group, arrays)
    finally:
        HERE.notes = None
    return [*parts, np.array(notes, np.float64).reshape(-1, len(Note._fields))]


# ---- notes of kernel calls and messages


def watch(program: ModuleType) -> None:
    """Wraps the kernels and messages of a program so that they are noted; idempotent."""
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
    """Returns the number of pairs of a kernel call: full, below the diagonal, or in a band."""
    if isinstance(band, bool):
        band = (-rows, 0) if band else (-rows, columns)
    low, high = band
    i = np.arange(rows)
    return int(np.maximum(np.minimum(i + high + 1, columns) - np.maximum(i + low, 0), 0).sum())


# For each collective, the number of elements that one rank sends another.
SIZES: dict[str, Callable[..., int]] = {
    "all_to_all_single": lambda output, input, *_, group, **__: input.numel() // group.size(),
    "all_gather_into_tensor": lambda output, input, **_: input.numel(),
    "reduce_scatter_tensor": lambda output, input, **_: output.numel(),
    "all_gather_single": lambda output, input, **_: input.numel(),
    "reduce_scatter_single": lambda output, input, **_: output.numel(),
    "broadcast": lambda tensor, **_: tensor.numel(),
    "reduce": lambda tensor, **_: tensor.numel(),
}


class Watching:
    """A `torch.distributed` that notes when messages are posted and when they arrive."""

    def __init__(self, plain: Any) -> None:
        self.plain = plain

    def __getattr__(self, name: str) -> Any:
        if name in SIZES:
            return partial(self._collective, name)
        return getattr(self.plain, name)

    def batch_isend_irecv(self, ops: list[Any]) -> list[Any]:
        """Starts messages, each with a thread that waits for it."""
        began, notes = perf_counter(), HERE.notes
        works = list(self.plain.batch_isend_irecv(ops))
        if notes is None:
            return works
        if len(works) != len(ops):
            raise RingloomError("cannot record: this backend has no handle for each message")
        kinds = [SENT if op.op.__name__ == "isend" else CAME for op in ops]
        peers = [self.plain.get_process_group_ranks(op.group)[op.group_peer] for op in ops]
        return [
            Watched(work, notes, (HERE.backward, kind, peer, op.tensor.numel(), began))
            for work, op, kind, peer in zip(works, ops, kinds, peers, strict=True)
        ]

    def _collective(self, name: str, *args: Any, **rest: Any) -> Any:
        """Runs a collective, waits for it, and notes what it received and sent."""
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
        """Returns (kind, peer) of this rank's messages in a collective."""
        own, ranks = self.plain.get_rank(), self.plain.get_process_group_ranks(group)
        others = [rank for rank in ranks if rank != own]
        if group_src is group_dst is None:
            return [(kind, rank) for rank in others for kind in (SENT, CAME)]
        root = ranks[group_dst if group_src is None else group_src]
        if own != root:
            return [(SENT if group_src is None else CAME, root)]
        return [(CAME if group_src is None else SENT, rank) for rank in others]


class Watched:
    """A message in transit; a thread notes when it is done."""

    def __init__(
        self, work: Any, notes: list[Note], about: tuple[float, float, float, float, float]
    ) -> None:
        self.work, self.notes, self.about = work, notes, about
        self.error: BaseException | None = None
        self.place = len(notes)
        notes.append(Note(*about, about[-1]))  # in the order of the starts
        self.thread = threading.Thread(target=self._watch, daemon=True)
        if isinstance(work, dist.Work):  # others complete in wait()
            self.thread.start()

    def _watch(self) -> None:
        try:
            self.work.wait()
        except BaseException as error:
            self.error = error
        self.notes[self.place] = Note(*self.about, perf_counter())

    def wait(self) -> None:
        """Waits until the message is done; raises the error of its thread."""
        if isinstance(self.work, dist.Work):
            self.thread.join()
        else:
            self._watch()
        if self.error is not None:
            raise self.error


# ---- from notes to rows of the plan


def events_of(plan: Plan, notes: list[list[Note]]) -> Events:
    """Returns the events of the plan's rows from the notes of all ranks."""
    own = [
        [note for note in rank if bool(note.backward) == (plan.pass_ == "backward")]
        for rank in notes
    ]
    events, start = Events(), min((n.start for rank in own for n in rank), default=0.0)
    for rank, left in enumerate(own):
        events |= _computed(plan, rank, left, start)
        events |= _moved(plan, rank, left, start)
    return events


def _computed(plan: Plan, rank: int, notes: list[Note], start: float) -> Events:
    """Returns attends, and merges of zero length after them."""
    calls, events = [note for note in notes if note.kind == KERNEL], Events()
    rows = _attends(plan, rank)
    for row, begin, end in _matched(plan, rank, "attends", rows, calls, start):
        events["attend", rank, row.step, row.number] = begin, end
        events["merge", rank, row.step, row.number] = end, end
    return events


def _attends(plan: Plan, rank: int) -> Iterator[Row]:
    """Yields every rectangle of a rank; its size is pairs times heads."""
    table, first = tiles(plan), Counter[int]()
    for step, node in plan.attends():
        rows = np.flatnonzero(node.rank == rank)
        q, kv = node.q[rows], node.kv[rows]
        pairs = table.pairs(q[:, :, None], kv[:, None, :]).sum(axis=(1, 2))
        for row, size in zip(rows.tolist(), pairs.tolist(), strict=True):
            yield Row(step, first[step] + row, size * plan.workload.batch)
        first[step] += len(node)


def _moved(plan: Plan, rank: int, notes: list[Note], start: float) -> Events:
    """Returns sends and receives, and arrivals of zero length where sums are added."""
    events = Events()
    for kind, own, other in ((SENT, "src", "dst"), (CAME, "dst", "src")):
        for peer, rows in _moves(plan, rank, own, other).items():
            messages = [n for n in notes if n.kind == kind and n.peer == peer]
            what = f"sends to {peer}" if kind == SENT else f"receives from {peer}"
            name: Kind = "send" if kind == SENT else "receive"
            for row, begin, end in _matched(plan, rank, what, rows, messages, start):
                events[name, rank, row.step, row.number] = begin, end
                if row.added and kind == CAME:
                    events["arrive", rank, row.step, row.number] = end, end
    return events


def _moves(plan: Plan, rank: int, own: str, other: str) -> dict[int, list[Row]]:
    """Returns every message by its peer; sizes are in elements."""
    wide = replace(plan, workload=replace(plan.workload, dtype="float64"))
    rows, first = defaultdict[int, list[Row]](list), Counter[int]()
    for step, move in plan.moves():
        sizes = [np.append(wide.block_bytes(t) // 8, 0) for t in move.tensors]
        for row in np.flatnonzero(getattr(move, own) == rank).tolist():
            size = int(sum(s[move.blocks[row]].sum() for s in sizes))
            blocks = move.blocks[row][move.blocks[row] >= 0]
            owners = plan.partition.side(move.side).owners[blocks]
            home = move.accumulates and bool((owners == move.src[row]).all())
            message = Row(step, first[step] + row, size, move.accumulates, home)
            rows[int(getattr(move, other)[row])].append(message)
        first[step] += len(move)
    return rows


def _matched(
    plan: Plan, rank: int, what: str, rows: Iterable[Row], notes: list[Note], start: float
) -> Iterator[tuple[Row, float, float]]:
    """Yields each row, with the start and end of the notes whose sizes add up to its size.

    An empty row has no note and takes no time. The same applies to sums that their owner would send
    if the program leaves them in place. `start` is that of the pass.
    """
    rows, waiting, end = [*rows], iter(notes), start
    short = sum(row.size for row in rows) - sum(int(note.size) for note in notes)
    if short and short == sum(row.size for row in rows if row.home):
        rows = [row._replace(size=0) if row.home else row for row in rows]
    for row in rows:
        matched = list[Note]()
        while (missing := row.size - sum(note.size for note in matched)) > 0:
            if (note := next(waiting, None)) is None:
                break
            matched.append(note)
        if missing:
            raise RingloomError(
                f"{plan.name}: rank {rank} {what} differently from step {row.step} of the plan"
            )
        begin, end = (matched[0].start, max(n.end for n in matched)) if matched else (end, end)
        yield row, begin, end
