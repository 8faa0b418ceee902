"""A run of the emitted torch program, watched from outside.

Kernel calls and messages are noted where the program makes them, and told which rows of the plan
they are by what they carry: messages between two ranks come in the plan's order and have its
numbers, kernel calls of a rank come in its order and cover as many pairs. A program that does
anything else is refused. It runs twice on each rank; the second run is the one that is recorded.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np

from planner.errors import RingloomError
from planner.ir import TENSORS, Plan
from planner.plans import Plans
from runtimes.arrays import Array
from runtimes.recording.events import Event, Log, turns
from runtimes.recording.watching import CAME, HERE, KERNEL, SENT, Note, watch
from runtimes.torch.launch import TIMEOUT, Launch, launched, wholes
from runtimes.torch.rank import BODIES, Body, Parts

Place = tuple[int, int]  # a step, and the number of its kind that the rank does in it


def execute(
    plans: Plans,
    function: str,
    *arrays: Array,
    log: Log,
    sinks: Array | None = None,
    launch: Launch | None = None,
    timeout: float = TIMEOUT,
) -> list[Array]:
    """Runs plans as `runtimes.torch.launch.execute` does, and stores events in the log.

    Raises RingloomError also where the program does not follow the plan row by row.
    """
    body = partial(watched, BODIES[function])
    program, parts = launched(plans, arrays, body, launch, timeout)
    tables = [part.pop() for part in parts]
    notes = [[Note(*row) for row in table.tolist()] for table in tables]
    log.passes += [(plan, events_of(plan, notes)) for plan in plans]
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


# ---- from notes to rows of the plan


def events_of(plan: Plan, notes: list[list[Note]]) -> list[Event]:
    """Returns the events of the plan's rows, from the notes of all ranks on one pass."""
    own = [
        [note for note in rank if bool(note.backward) == (plan.pass_ == "backward")]
        for rank in notes
    ]
    events, start = list[Event](), min((n.start for rank in own for n in rank), default=0.0)
    for rank, (steps, left) in enumerate(zip(turns(plan), own, strict=True)):
        happened = [e for find in (_computed, _sent, _came) for e in find(plan, rank, left, start)]
        begins = dict[int, float]()
        for event in happened:
            begins[event.step] = min(begins.get(event.step, np.inf), event.start)
        events += happened
        events += (Event("turn", rank, n, 0, begins[n], begins[n]) for n in steps if n in begins)
    return events


def _computed(plan: Plan, rank: int, notes: list[Note], start: float) -> Iterator[Event]:
    """Attends, and merges behind them, which take no time of their own."""
    calls = [note for note in notes if note.kind == KERNEL]
    rows = _attends(plan, rank)
    for place, begin, end in _matched(plan, rank, "attends", rows, calls, start):
        yield Event("attend", rank, *place, begin, end)
        yield Event("merge", rank, *place, end, end)


def _attends(plan: Plan, rank: int) -> Iterator[tuple[Place, int]]:
    """Yields (place, pairs times heads) of every rectangle of a rank."""
    work, counts = plan.workload, Counter[int]()
    q_side, kv_side = plan.partition.q.blocks, plan.partition.kv.blocks
    for step, node in plan.attends():
        for row in np.flatnonzero(node.rank == rank):
            queries, keys = (
                [b for b in side[row].tolist() if b >= 0] for side in (node.q, node.kv)
            )
            at, where = (
                np.concatenate([side[b].tokens() for b in blocks])
                for side, blocks in ((q_side, queries), (kv_side, keys))
            )
            own, other = q_side[queries[0]].heads, kv_side[keys[0]].heads
            low = max(own.start, other.start * work.group)
            heads = max(0, min(own.stop, other.stop * work.group) - low)
            yield (step, counts[step]), int(work.allowed(at, where).sum()) * heads * work.batch
            counts[step] += 1


def _sent(plan: Plan, rank: int, notes: list[Note], start: float) -> Iterator[Event]:
    for peer, rows in _moves(plan, rank, "src", "dst").items():
        taken = [n for n in notes if n.kind == SENT and n.peer == peer]
        sizes = [(place, size) for place, size, _ in rows]
        what = f"sends to {peer}"
        for place, begin, end in _matched(plan, rank, what, sizes, taken, start):
            yield Event("send", rank, *place, begin, end)


def _came(plan: Plan, rank: int, notes: list[Note], start: float) -> Iterator[Event]:
    for peer, rows in _moves(plan, rank, "dst", "src").items():
        taken = [n for n in notes if n.kind == CAME and n.peer == peer]
        sizes, sums = [(place, size) for place, size, _ in rows], {p: s for p, _, s in rows}
        what = f"receives from {peer}"
        for place, begin, end in _matched(plan, rank, what, sizes, taken, start):
            yield Event("receive", rank, *place, begin, end)
            if sums[place]:
                yield Event("arrive", rank, *place, end, end)


def _moves(plan: Plan, rank: int, own: str, other: str) -> dict[int, list[tuple[Place, int, bool]]]:
    """Returns, by the rank at the other end, (place, elements, accumulates) of every message."""
    wide = replace(plan, workload=replace(plan.workload, dtype="float64"))
    rows, counts = defaultdict[int, list[tuple[Place, int, bool]]](list), Counter[int]()
    for step, move in plan.moves():
        sizes = [np.append(wide.block_bytes(t) // 8, 0) for t in move.tensors]
        for row in np.flatnonzero(getattr(move, own) == rank):
            size = int(sum(s[move.blocks[row]].sum() for s in sizes))
            place = step, counts[step]
            sums = TENSORS[move.tensors[0]].accumulates
            rows[int(getattr(move, other)[row])].append((place, size, sums))
            counts[step] += 1
    return rows


def _matched(
    plan: Plan, rank: int, what: str, rows: Any, notes: list[Note], start: float
) -> Iterator[tuple[Place, float, float]]:
    """Yields the place of each row, and the start and end of the notes whose sizes add up to its.

    A row without an element leaves no note and takes no time; `start` is that of the pass.
    """
    waiting, end = iter(notes), start
    for place, size in rows:
        taken = list[Note]()
        while sum(note.size for note in taken) < size:
            note = next(waiting, None)
            if note is None:
                break
            taken.append(note)
        if sum(note.size for note in taken) != size:
            raise RingloomError(
                f"{plan.name}: rank {rank} {what} differently from step {place[0]} of the plan"
            )
        begin, end = (taken[0].start, max(n.end for n in taken)) if taken else (end, end)
        yield place, begin, end
