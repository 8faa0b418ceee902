"""Timeline: the times of each rank's steps and, for small plans, of each row, as plain data.

compute   |attend|merge|   |attend|merge|      pictures, traces and tests read timelines
send      |KV 0 -> 1 ===|
receive        |KV 7 -> 0 ===|
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from ringloom.planner.errors import RingloomError
from ringloom.planner.ir import Attend, Move, Plan
from ringloom.planner.partitions import Ints
from ringloom.simulator.memory import Memory

Floats = NDArray[np.float64]
Stream = Literal["compute", "merge", "send", "receive", "wait"]
STREAMS: tuple[Stream, ...] = get_args(Stream)
Kind = Literal["attend", "add", "message", "merge", "unpack"]


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Rows of a node with at most one row per rank, and their times [rows] in seconds.

    Messages are on the wire from `start` to `end`. The `arrival` of work is its end.
    """

    kind: Kind
    step: int
    node: Attend | Move
    start: Floats
    end: Floats
    arrival: Floats
    bytes: NDArray[np.int64]


def work(kind: Kind, step: int, node: Attend | Move, start: Floats, end: Floats) -> Rows:
    """Returns rows of local work, without messages."""
    return Rows(kind, step, node, start, end, end, np.zeros(len(node), np.int64))


class Wait(NamedTuple):
    """The wait of a rank in a step for messages that were already sent, in seconds."""

    step: int
    rank: int
    start: float
    end: float


@dataclass(frozen=True, eq=False)
class Timeline:
    """The times of a run, in seconds.

    `finish` [ranks] is the end of each rank's last work, `end` the end of the run. `steps` [3,
    steps, ranks] are the start of each step and the start and end of its attends, which include
    adding their results; both are equal without attends. `rows` are all rows in plan order.
    `steps` and `rows` are None if the plan is too large to keep them; a recorded run has only rows.
    `waits`, kept with the rows, are the waits that add up to exposed communication.
    """

    plan: Plan
    end: float
    finish: Floats
    steps: Floats | None
    rows: tuple[Rows, ...] | None
    waits: tuple[Wait, ...] = ()

    def __repr__(self) -> str:
        plan, rows = self.plan, "all rows" if self.rows is not None else "no rows"
        return f"<Timeline of {plan.name}, {plan.ranks} ranks: {self.end:.4g} s, {rows} kept>"

    @property
    def begin(self) -> Floats:
        """The start of each step on each rank: [steps, ranks]."""
        if self.steps is None:
            raise RingloomError(
                f"{self.plan.name}: the times of {len(self.plan.steps)} steps on"
                f" {self.plan.ranks} ranks were not kept; simulate with record=True"
            )
        return np.asarray(self.steps[0])


@dataclass(frozen=True, eq=False, kw_only=True)
class Run:
    """The run of one pass, or of a forward and then a backward pass, in seconds and bytes.

    For a pair, `passes` has both runs. A single pass has a `timeline` and a `memory` instead, if
    they were kept.
    """

    name: str
    hardware: str
    ranks: int
    makespan: float
    messages: int
    timeline: Timeline | None = None
    memory: Memory | None = None
    passes: tuple["Run", ...] = ()

    def in_turn(self) -> Iterator[tuple["Run", float]]:
        """Yields each pass and the time at which it starts."""
        begin = 0.0
        for part in self.passes or (self,):
            yield part, begin
            begin += part.makespan


@dataclass(frozen=True, slots=True)
class Entry:
    """One row of a timeline; for work, `src` and `dst` are the same rank, and `arrival` is the end.

    attend    q 0 x kv 3,4      add    adds the results of an attend to accumulators
    message   KV 3              merge  merges received partial sums
    unpack    copies heads that an all-to-all has delivered
    """

    kind: Kind
    step: int
    name: str
    src: int
    dst: int
    start: float
    end: float
    arrival: float
    bytes: int = 0

    @property
    def title(self) -> str:
        """The name with a verb for pictures and traces, such as "merge KV 3 from 1"."""
        match self.kind:
            case "attend":
                return f"attend {self.name}"
            case "add":
                return f"merge {self.name}"
            case "merge" | "unpack":
                return f"{self.kind} {self.name} from {self.src}"
            case "message":
                return f"send {self.name} to {self.dst}"


def entries(timeline: Timeline) -> Iterator[Entry]:
    """Yields all rows in plan order; raises RingloomError if rows were not kept."""
    if timeline.rows is None:
        name = timeline.plan.name
        raise RingloomError(f"{name}: the rows were not kept; simulate with record=True")
    for rows in timeline.rows:
        if isinstance(node := rows.node, Attend):
            sides, src, dst = zip(node.q, node.kv, strict=True), node.rank, node.rank
            names = [f"q {_list(q)} x kv {_list(kv)}" for q, kv in sides]
        else:
            names, src, dst = block_names(node), node.src, node.dst
        numbers = src, dst, rows.start, rows.end, rows.arrival, rows.bytes
        for name, *row in zip(names, *(column.tolist() for column in numbers), strict=True):
            yield Entry(rows.kind, rows.step, name, *row)


@dataclass(frozen=True, slots=True)
class Span:
    """An interval of a rank's stream, from `start` to `end` in seconds.

    A message has its `bytes` and its number in plan order; other spans have 0 and -1.
    """

    rank: int
    stream: Stream
    name: str
    step: int
    start: float
    end: float
    bytes: int = 0
    message: int = -1


def spans(timeline: Timeline) -> list[Span]:
    """Returns all spans longer than 0, in plan order; raises RingloomError if rows were not kept.

    A receive is as long as its send, and ends when the message has arrived.
    """
    return [span for span in _spans(timeline) if span.end > span.start]


def _spans(timeline: Timeline) -> Iterator[Span]:
    numbers = count()
    for e in entries(timeline):
        if e.kind != "message":
            stream: Stream = "compute" if e.kind == "attend" else "merge"
            yield Span(e.dst, stream, e.title, e.step, e.start, e.end)
            continue
        start, message = e.start + (e.arrival - e.end), next(numbers)
        yield Span(e.src, "send", e.title, e.step, e.start, e.end, e.bytes, message)
        name = f"receive {e.name} from {e.src}"
        yield Span(e.dst, "receive", name, e.step, start, e.arrival, e.bytes, message)


def block_names(node: Move) -> list[str]:
    """Names the blocks of each message, such as "Q,DOUT,STATS 3"."""
    tensors = ",".join(node.tensors)
    return [f"{tensors} {_list(blocks)}" for blocks in node.blocks]


def _list(blocks: Ints) -> str:
    return ",".join(map(str, blocks[blocks >= 0].tolist()))
