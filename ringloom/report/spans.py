"""What streams did when, as columns of bars: the facts of the timeline."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.ir import Attend, Move
from ringloom.report.study import Leg
from simulator.timeline import (
    Attended,
    Merged,
    Sent,
    Span,
    Timeline,
    block_names,
    tile_names,
)

Floats = NDArray[np.float64]
STREAMS = ("compute", "merge", "send", "receive")
SHOWN = 64  # ranks that a picture shows
NUMBERS = ("rank", "stream", "step", "start", "end")
MOST = 60_000  # spans of one schedule that a picture shows


@dataclass(frozen=True, eq=False)
class Bars:
    """Columns of equal length; `stream` indexes STREAMS, times are seconds.

    `whole` is False where only the attends of each step are known, not every row of the plan.
    """

    rank: NDArray[np.int32]
    stream: NDArray[np.int8]
    step: NDArray[np.int32]
    start: Floats
    end: Floats
    names: list[str]
    whole: bool = True

    def __len__(self) -> int:
        return len(self.names)


def bars_of(legs: Iterable[Leg]) -> Bars:
    """Everything that the first ranks do in the passes of one schedule, in turn.

    Receives are left out: each is the send of another rank.
    """
    parts = [_of_pass(leg.found.timeline, leg.offset) for leg in legs]
    rank, stream, step, start, end = _joined(parts)
    names = [name for part in parts for name in part.names]
    return Bars(rank, stream, step, start, end, names, all(part.whole for part in parts))


def _joined(parts: Sequence[Bars]) -> Iterator[NDArray[Any]]:
    """The numbers of several bars, column by column."""
    return (np.concatenate([getattr(part, name) for part in parts]) for name in NUMBERS)


def _of_pass(timeline: Timeline | None, offset: float) -> Bars:
    if timeline is None:
        return columns([], False)
    if timeline.rows is None or timeline.plan.rows > MOST:
        kept = columns(_attends_of_steps(timeline), False)
        return replace(kept, start=kept.start + offset, end=kept.end + offset)
    parts = [*map(_of_rows, timeline.rows), columns([])]
    rank, stream, step, start, end = _joined(parts)
    names = [name for part in parts for name in part.names]
    some = np.flatnonzero((end > start) & (rank < SHOWN))
    there = [names[n] for n in some.tolist()] if len(some) < len(names) else names
    return Bars(
        rank[some], stream[some], step[some], start[some] + offset, end[some] + offset, there
    )


def _of_rows(rows: Attended | Merged | Sent) -> Bars:
    """Rows as `simulator.timeline.spans` names them, by columns: 64 ranks have ten thousands."""
    match rows:
        case Attended(node=node):
            kind, rank, names = "compute", node.rank, tile_names(node)
        case Merged(node=Attend() as node):
            kind, rank, names = "merge", node.rank, [f"add {name}" for name in tile_names(node)]
        case Merged(node=Move() as node):
            kind, rank, names = "merge", node.dst, _message_names("merge", node)
        case Sent(node=node):
            kind, rank, names = "send", node.src, _message_names("send", node)
    stream = np.full(len(rank), STREAMS.index(kind), np.int8)
    return Bars(rank, stream, np.full(len(rank), rows.step, np.int32), rows.start, rows.end, names)


def _message_names(verb: str, node: Move) -> list[str]:
    other, word = (node.dst, "to") if verb == "send" else (node.src, "from")
    named = zip(block_names(node), other.tolist(), strict=True)
    return [f"{verb} {what} {word} {peer}" for what, peer in named]


def _attends_of_steps(timeline: Timeline) -> list[Span]:
    """One span per step and rank, for plans whose rows are too many to keep or to draw."""
    if timeline.steps is None:
        return []
    start, end = (times[:, :SHOWN] for times in (timeline.attend_start, timeline.attend_end))
    steps, ranks = np.nonzero(end > start)
    some = slice(0, MOST)
    return [
        Span(r, "compute", f"attends of step {s + 1}", s, float(start[s, r]), float(end[s, r]))
        for s, r in zip(steps[some].tolist(), ranks[some].tolist(), strict=True)
    ]


def columns(found: Sequence[Span], whole: bool = True) -> Bars:
    """Spans by columns."""
    return Bars(
        np.array([s.rank for s in found], np.int32),
        np.array([STREAMS.index(s.stream) for s in found], np.int8),
        np.array([s.step for s in found], np.int32),
        np.array([s.start for s in found], np.float64),
        np.array([s.end for s in found], np.float64),
        [s.name for s in found],
        whole,
    )
