"""What streams did when, as columns of bars: the facts of the timeline."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.ir import Attend, Move
from planner.partitions import Ints
from ringloom.report.names import Names, alike, joined, verbatim
from ringloom.report.study import Leg
from simulator.timeline import Attended, Merged, Sent, Span, Timeline

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
    names: Names
    whole: bool = True

    def __len__(self) -> int:
        return len(self.rank)


def bars_of(legs: Iterable[Leg]) -> Bars:
    """Everything that the first ranks do in the passes of one schedule, in turn.

    Receives are left out: each is the send of another rank.
    """
    parts = [_of_pass(leg.found.timeline, leg.offset) for leg in legs]
    return replace(_joined(parts), whole=all(part.whole for part in parts))


def _joined(parts: Sequence[Bars]) -> Bars:
    """All bars of several, column by column."""
    numbers: dict[str, Any] = {
        name: np.concatenate([getattr(part, name) for part in parts]) for name in NUMBERS
    }
    return Bars(**numbers, names=joined(part.names for part in parts))


def _of_pass(timeline: Timeline | None, offset: float) -> Bars:
    if timeline is None:
        return columns([], False)
    if timeline.rows is None or timeline.plan.rows > MOST:
        kept = columns(_attends_of_steps(timeline), False)
        return replace(kept, start=kept.start + offset, end=kept.end + offset)
    bars = _joined([*map(_of_rows, timeline.rows), columns([])])
    some = np.flatnonzero((bars.end > bars.start) & (bars.rank < SHOWN))
    return Bars(
        bars.rank[some],
        bars.stream[some],
        bars.step[some],
        bars.start[some] + offset,
        bars.end[some] + offset,
        bars.names[some],
    )


def _of_rows(rows: Attended | Merged | Sent) -> Bars:
    """Rows as `simulator.timeline.spans` names them, by columns: 64 ranks have ten thousands."""
    match rows:
        case Attended(node=node):
            kind, rank, names = "compute", node.rank, alike(("q ", " x kv "), node.q, node.kv)
        case Merged(node=Attend() as node):
            kind, rank, names = "merge", node.rank, alike(("add q ", " x kv "), node.q, node.kv)
        case Merged(node=Move() as node):
            kind, rank, names = "merge", node.dst, _message_names("merge", "from", node, node.src)
        case Sent(node=node):
            kind, rank, names = "send", node.src, _message_names("send", "to", node, node.dst)
    stream = np.full(len(rank), STREAMS.index(kind), np.int8)
    return Bars(rank, stream, np.full(len(rank), rows.step, np.int32), rows.start, rows.end, names)


def _message_names(verb: str, word: str, node: Move, peer: Ints) -> Names:
    return alike((f"{verb} {','.join(node.tensors)} ", f" {word} "), node.blocks, peer[:, None])


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
        verbatim([s.name for s in found]),
        whole,
    )
