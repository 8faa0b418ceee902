"""Records a run of the emitted torch program.

Kernel calls and messages are wrapped, and matched with rows of the plan by order and size: messages
between two ranks have the order and sizes of the plan, and kernel calls of a rank have its order
and numbers of pairs. Raises RingloomError for other programs. Each rank runs the program twice and
records the second run.
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
from ringloom.runtimes.torch.launch import TIMEOUT, Launch, launch_plans, unshard
from ringloom.runtimes.torch.rank import ENTRY_POINTS, Body, Parts

KERNEL, SEND, RECEIVE = range(3)
KERNELS = ("attend", "attend_backward")
LOCK = threading.Lock()
SUFFIX = "\n\nRECORDED = True\n"  # makes the text differ, so that the program has own operators


class Note(NamedTuple):
    """A kernel call or a message of a rank.

    `size`: pairs times heads of a kernel call, elements of a message.
    """

    backward: float
    kind: float
    peer: float  # -1 for kernel calls
    size: float
    start: float
    end: float


class Row(NamedTuple):
    """A row of the plan: its step, its index in the step, and its pairs or elements.

    `is_sum`: the message contains partial sums. `is_owned`: of blocks that the sender owns.
    """

    step: int
    number: int
    size: int
    is_sum: bool = False
    is_owned: bool = False


class Current(threading.local):
    """The notes and the pass of this thread's rank; notes are None outside recorded runs."""

    notes: list[Note] | None = None
    backward = False


CURRENT = Current()


def execute(
    plans: Plans,
    function: str,
    *arrays: Array,
    log: list[Recorded],
    sinks: Array | None = None,
    launch: Launch | None = None,
    timeout: float = TIMEOUT,
) -> list[Array]:
    """Runs plans like `ringloom.runtimes.torch.launch.execute`, and adds events to the log.

    Also raises RingloomError if the program does not follow the plan row by row.
    """
    if plans.forward is None and plans.first.start:  # its program would first fetch the copies
        raise RingloomError(
            f"{plans.name}: the backward pass starts with data of the forward pass: record both"
            " passes together"
        )
    body = partial(run_twice, partial(ENTRY_POINTS[function], sinks=sinks))
    program, parts = launch_plans(plans, arrays, body, launch, timeout, SUFFIX)
    tables = [part.pop() for part in parts]
    refuse_nan(arrays, parts)
    notes = [[Note(*row) for row in table.tolist()] for table in tables]
    log += [(plan, events_of(plan, notes)) for plan in plans]
    return unshard(program, function, parts)


def run_twice(body: Body, program: ModuleType, group: Any, arrays: Sequence[Array]) -> Parts:
    """Runs `body` twice on a rank; returns its results and the notes of the second run: [n, 6]."""
    wrap(program)
    body(program, group, arrays)
    program.dist.barrier(group=group)
    CURRENT.notes = notes = list[Note]()
    try:
        parts = body(program, group, arrays)
    finally:
        CURRENT.notes = None
    return [*parts, np.array(notes, np.float64).reshape(-1, len(Note._fields))]


# ---- notes of kernel calls and messages


def wrap(program: ModuleType) -> None:
    """Wraps the kernels and messages of a program so that they are noted; idempotent."""
    names = vars(program)
    with LOCK:
        if isinstance(names["dist"], NotedDist):
            return
        names["dist"] = NotedDist(names["dist"])
        for name in KERNELS:
            if name in names:
                names[name] = partial(_call_kernel, names[name], name == "attend_backward")
        if "backward" in names:
            names["backward"] = partial(_call_backward, names["backward"])


def _call_backward(plain: Callable[..., Any], *args: Any) -> Any:
    CURRENT.backward = True
    try:
        return plain(*args)
    finally:
        CURRENT.backward = False


def _call_kernel(plain: Callable[..., Any], backward: bool, *args: Any) -> Any:
    start = perf_counter()
    result = plain(*args)
    if CURRENT.notes is not None:
        q, k = (args[1], args[4]) if backward else args[:2]
        size = pairs(q.shape[2], k.shape[2], args[-1]) * prod(q.shape[:2])
        CURRENT.notes.append(Note(backward, KERNEL, -1, size, start, perf_counter()))
    return result


def pairs(rows: int, columns: int, band: bool | Sequence[int]) -> int:
    """Returns the number of pairs of a kernel call: of a triangle for True, all for False."""
    if isinstance(band, bool):
        band = (-rows, 0) if band else (-rows, columns)
    low, high = band
    i = np.arange(rows)
    return int(np.maximum(np.minimum(i + high + 1, columns) - np.maximum(i + low, 0), 0).sum())


# For each collective, the number of elements that a rank sends to each other rank.
SIZES: dict[str, Callable[..., int]] = {
    "all_to_all_single": lambda output, input, *_, group, **__: input.numel() // group.size(),
    "all_gather_into_tensor": lambda output, input, **_: input.numel(),
    "reduce_scatter_tensor": lambda output, input, **_: output.numel(),
    "all_gather_single": lambda output, input, **_: input.numel(),
    "reduce_scatter_single": lambda output, input, **_: output.numel(),
    "broadcast": lambda tensor, **_: tensor.numel(),
    "reduce": lambda tensor, **_: tensor.numel(),
}


class NotedDist:
    """A wrapper of `torch.distributed` that notes when messages are posted and complete."""

    def __init__(self, plain: Any) -> None:
        self.plain = plain

    def __getattr__(self, name: str) -> Any:
        if name in SIZES:
            return partial(self._collective, name)
        return getattr(self.plain, name)

    def batch_isend_irecv(self, ops: list[Any]) -> list[Any]:
        """Starts messages, each with a thread that waits for its completion."""
        start, notes = perf_counter(), CURRENT.notes
        works = list(self.plain.batch_isend_irecv(ops))
        if notes is None:
            return works
        if len(works) != len(ops):
            raise RingloomError("cannot record: this backend returns no handle for each message")
        kinds = [SEND if op.op.__name__ == "isend" else RECEIVE for op in ops]
        peers = [self.plain.get_process_group_ranks(op.group)[op.group_peer] for op in ops]
        return [
            NotedMessage(work, notes, (CURRENT.backward, kind, peer, op.tensor.numel(), start))
            for work, op, kind, peer in zip(works, ops, kinds, peers, strict=True)
        ]

    def _collective(self, name: str, *args: Any, **options: Any) -> Any:
        """Runs a collective, waits for it, and notes its messages."""
        start, notes = perf_counter(), CURRENT.notes
        work = getattr(self.plain, name)(*args, **options)
        if notes is None:
            return work
        if work is not None:
            work.wait()
        size = SIZES[name](*args, **options)
        for kind, peer in self._messages(**options):
            notes.append(Note(CURRENT.backward, kind, peer, size, start, perf_counter()))
        return work if options.get("async_op") else None

    def _messages(
        self, group: Any, group_src: int | None = None, group_dst: int | None = None, **_: Any
    ) -> list[tuple[int, int]]:
        """Returns (kind, peer) of this rank's messages in a collective."""
        rank_here, ranks = self.plain.get_rank(), self.plain.get_process_group_ranks(group)
        others = [rank for rank in ranks if rank != rank_here]
        if group_src is group_dst is None:
            return [(kind, rank) for rank in others for kind in (SEND, RECEIVE)]
        root = ranks[group_dst if group_src is None else group_src]
        if rank_here != root:
            return [(SEND if group_src is None else RECEIVE, root)]
        return [(RECEIVE if group_src is None else SEND, rank) for rank in others]


class NotedMessage:
    """A message in transit; a thread notes when it completes."""

    def __init__(
        self, work: Any, notes: list[Note], fields: tuple[float, float, float, float, float]
    ) -> None:
        self.work, self.notes, self.fields = work, notes, fields
        self.error: BaseException | None = None
        self.index = len(notes)
        notes.append(Note(*fields, fields[-1]))  # reserves the place in the order of starts
        self.thread = threading.Thread(target=self._finish, daemon=True)
        if isinstance(work, dist.Work):  # other handles complete in wait()
            self.thread.start()

    def _finish(self) -> None:
        try:
            self.work.wait()
        except BaseException as error:
            self.error = error
        self.notes[self.index] = Note(*self.fields, perf_counter())

    def wait(self) -> None:
        """Waits until the message completes; raises the error of its thread."""
        if isinstance(self.work, dist.Work):
            self.thread.join()
        else:
            self._finish()
        if self.error is not None:
            raise self.error


# ---- from notes to rows of the plan


def events_of(plan: Plan, notes: list[list[Note]]) -> Events:
    """Returns the events of the plan's rows from the notes of all ranks."""
    notes_by_rank = [
        [note for note in rank if bool(note.backward) == (plan.pass_ == "backward")]
        for rank in notes
    ]
    events, start = Events(), min((n.start for rank in notes_by_rank for n in rank), default=0.0)
    for rank, rank_notes in enumerate(notes_by_rank):
        events |= _attend_events(plan, rank, rank_notes, start)
        events |= _move_events(plan, rank, rank_notes, start)
    return events


def _attend_events(plan: Plan, rank: int, notes: list[Note], start: float) -> Events:
    """Returns attends, each followed by a merge of zero length."""
    calls, events = [note for note in notes if note.kind == KERNEL], Events()
    rows = _attend_rows(plan, rank)
    for row, begin, end in _match(plan, rank, "attends", rows, calls, start):
        events["attend", rank, row.step, row.number] = begin, end
        events["merge", rank, row.step, row.number] = end, end
    return events


def _attend_rows(plan: Plan, rank: int) -> Iterator[Row]:
    """Yields every rectangle of a rank, with pairs times heads as its size."""
    table, first = tiles(plan), Counter[int]()
    for step, node in plan.attends():
        rows = np.flatnonzero(node.rank == rank)
        q, kv = node.q[rows], node.kv[rows]
        pairs = table.pairs(q[:, :, None], kv[:, None, :]).sum(axis=(1, 2))
        for row, size in zip(rows.tolist(), pairs.tolist(), strict=True):
            yield Row(step, first[step] + row, size * plan.workload.batch)
        first[step] += len(node)


def _move_events(plan: Plan, rank: int, notes: list[Note], start: float) -> Events:
    """Returns sends and receives, and arrivals of zero length where sums are added."""
    events = Events()
    for kind, own_column, peer_column in ((SEND, "src", "dst"), (RECEIVE, "dst", "src")):
        for peer, rows in _move_rows(plan, rank, own_column, peer_column).items():
            messages = [n for n in notes if n.kind == kind and n.peer == peer]
            action = f"sends to {peer}" if kind == SEND else f"receives from {peer}"
            name: Kind = "send" if kind == SEND else "receive"
            for row, begin, end in _match(plan, rank, action, rows, messages, start):
                events[name, rank, row.step, row.number] = begin, end
                if row.is_sum and kind == RECEIVE:
                    events["arrive", rank, row.step, row.number] = end, end
    return events


def _move_rows(plan: Plan, rank: int, own_column: str, peer_column: str) -> dict[int, list[Row]]:
    """Returns the rows of messages by peer; sizes are in elements."""
    elements = replace(plan, workload=replace(plan.workload, dtype="float64"))
    rows, first = defaultdict[int, list[Row]](list), Counter[int]()
    for step, move in plan.moves():
        sizes = [np.append(elements.block_bytes(t) // 8, 0) for t in move.tensors]
        for row in np.flatnonzero(getattr(move, own_column) == rank).tolist():
            size = int(sum(s[move.blocks[row]].sum() for s in sizes))
            blocks = move.blocks[row][move.blocks[row] >= 0]
            owners = plan.partition.side(move.side).owners[blocks]
            is_owned = move.accumulates and bool((owners == move.src[row]).all())
            message = Row(step, first[step] + row, size, move.accumulates, is_owned)
            rows[int(getattr(move, peer_column)[row])].append(message)
        first[step] += len(move)
    return rows


def _match(
    plan: Plan, rank: int, action: str, rows: Iterable[Row], notes: list[Note], start: float
) -> Iterator[tuple[Row, float, float]]:
    """Yields each row, with the start and end of the notes whose sizes add up to its size.

    Empty rows have no notes and take no time. The same applies to sums of blocks that the sender
    owns, if the program leaves them in place. `start` is the start of the pass.
    """
    rows, remaining, end = [*rows], iter(notes), start
    absent = sum(row.size for row in rows) - sum(int(note.size) for note in notes)
    if absent and absent == sum(row.size for row in rows if row.is_owned):
        rows = [row._replace(size=0) if row.is_owned else row for row in rows]
    for row in rows:
        matched = list[Note]()
        while (missing := row.size - sum(note.size for note in matched)) > 0:
            if (note := next(remaining, None)) is None:
                break
            matched.append(note)
        if missing:
            raise RingloomError(
                f"{plan.name}: rank {rank} {action} differently from step {row.step} of the plan"
            )
        begin, end = (matched[0].start, max(n.end for n in matched)) if matched else (end, end)
        yield row, begin, end
