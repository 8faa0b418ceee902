"""A timeline is data: when each rank began each step, and for small plans when each row ran.

compute   |attend|merge|   |attend|merge|      pictures, traces and tests are views of it
send      |KV 0 -> 1 ===|
receive        |KV 7 -> 0 ===|
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from planner.errors import PlanError
from planner.ir import Attend, Move, Plan
from planner.partitions import Ints

Floats = NDArray[np.float64]
Stream = Literal["compute", "merge", "send", "receive"]


@dataclass(frozen=True, slots=True, eq=False)
class Attended:
    """Rows of an attend, each rank at most once, and when their kernels ran [rows]."""

    step: int
    node: Attend
    start: Floats
    end: Floats


@dataclass(frozen=True, slots=True, eq=False)
class Merged:
    """Rows whose results or arrivals were added to accumulators, and when [rows]."""

    step: int
    node: Attend | Move
    start: Floats
    end: Floats


@dataclass(frozen=True, slots=True, eq=False)
class Sent:
    """Messages: on the wire from `start` to `end`, at their destination at `arrival` [rows]."""

    step: int
    node: Move
    start: Floats
    end: Floats
    arrival: Floats
    bytes: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Timeline:
    """When everything happened, in seconds.

    `finish` [ranks] is the end of each rank's last work, `end` that of everything. `steps`
    [begin, attend start, attend end; steps; ranks]: a rank's attends of a step, with the adding of
    their results, ran between the last two, which are equal where it has none. `rows`: every row
    in plan order. Both are None where a plan is so large that they were not kept.
    """

    plan: Plan
    end: float
    finish: Floats
    steps: Floats | None
    rows: tuple[Attended | Merged | Sent, ...] | None

    @property
    def begin(self) -> Floats:
        """When each rank began each step: [steps, ranks]."""
        return self._kept(0)

    @property
    def attend_start(self) -> Floats:
        """When each rank's first attend of each step began: [steps, ranks]."""
        return self._kept(1)

    @property
    def attend_end(self) -> Floats:
        """When each rank's last attend of each step had ended: [steps, ranks]."""
        return self._kept(2)

    def _kept(self, which: int) -> Floats:
        if self.steps is None:
            raise PlanError(
                f"{self.plan.name}: the times of {len(self.plan.steps)} steps on"
                f" {self.plan.ranks} ranks were not kept; simulate with record=True"
            )
        times: Floats = self.steps[which]
        return times


@dataclass(frozen=True, slots=True)
class Span:
    """One thing that a stream of a rank did from `start` to `end`, in seconds."""

    rank: int
    stream: Stream
    name: str
    step: int
    start: float
    end: float


def spans(timeline: Timeline) -> list[Span]:
    """All spans with a length, in plan order; raises PlanError where rows were not kept."""
    if timeline.rows is None:
        raise PlanError(
            f"{timeline.plan.name}: the rows of this timeline were not kept;"
            " simulate with record=True"
        )
    found = (span for rows in timeline.rows for span in _spans(rows))
    return [span for span in found if span.end > span.start]


def _spans(rows: Attended | Merged | Sent) -> Iterator[Span]:
    match rows:
        case Attended(step, node, start, end):
            yield from _on("compute", step, node.rank, tile_names(node), start, end)
        case Merged(step, Attend() as node, start, end):
            yield from _on(
                "merge", step, node.rank, [f"add {n}" for n in tile_names(node)], start, end
            )
        case Merged(step, Move() as node, start, end):
            yield from _on("merge", step, node.dst, _names("merge", node), start, end)
        case Sent(step, node, start, end, arrival):
            yield from _on("send", step, node.src, _names("send", node), start, end)
            yield from _on("receive", step, node.dst, _names("receive", node), start, arrival)


def _on(
    stream: Stream, step: int, rank: Ints, names: list[str], start: Floats, end: Floats
) -> Iterator[Span]:
    for r, name, a, b in zip(rank.tolist(), names, start.tolist(), end.tolist(), strict=True):
        yield Span(r, stream, name, step, a, b)


def tile_names(node: Attend) -> list[str]:
    """What each row attends: q 0 x kv 3,4"""
    return [f"q {_list(q)} x kv {_list(kv)}" for q, kv in zip(node.q, node.kv, strict=True)]


def block_names(node: Move) -> list[str]:
    """What each message carries: Q,DOUT,STATS 3"""
    what = ",".join(node.tensors)
    return [f"{what} {_list(blocks)}" for blocks in node.blocks]


def _names(verb: str, node: Move) -> list[str]:
    """send KV 3 to 1; receive KV 3 from 0; merge OUT 3 from 0"""
    other, word = (node.dst, "to") if verb == "send" else (node.src, "from")
    named = zip(block_names(node), other.tolist(), strict=True)
    return [f"{verb} {what} {word} {peer}" for what, peer in named]


def _list(blocks: Ints) -> str:
    return ",".join(map(str, blocks[blocks >= 0].tolist()))
