"""Spans of all streams as columns of bars: the facts of the timeline."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from planner.ir import Move
from planner.partitions import Ints
from ringloom.report.facts.legs import Leg
from ringloom.report.facts.names import Form, Names, joined, tabled, verbatim
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
    parts = [_of_pass(leg.prediction.timeline, leg.offset) for leg in legs]
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
    bars = _of_rows(timeline.rows)
    drawn = np.flatnonzero((bars.end > bars.start) & (bars.rank < SHOWN))
    return Bars(
        bars.rank[drawn],
        bars.stream[drawn],
        bars.step[drawn],
        bars.start[drawn] + offset,
        bars.end[drawn] + offset,
        bars.names[drawn],
    )


def _of_rows(rows: Sequence[Attended | Merged | Sent]) -> Bars:
    """Rows as `simulator.timeline.spans` names them, by columns: 64 ranks have ten thousands."""
    lanes = [_lane(one) for one in rows]
    sizes = [len(lane.rank) for lane in lanes]
    streams = np.array([STREAMS.index(lane.stream) for lane in lanes], np.int8)
    steps = np.array([one.step for one in rows], np.int32)
    nothing = [np.zeros(0)]
    return Bars(
        np.concatenate([np.zeros(0, np.int32), *(lane.rank for lane in lanes)]),
        np.repeat(streams, sizes),
        np.repeat(steps, sizes),
        np.concatenate(nothing + [one.start for one in rows]),
        np.concatenate(nothing + [one.end for one in rows]),
        tabled([(lane.form, lane.first, lane.second) for lane in lanes]),
    )


class _Lane(NamedTuple):
    """The stream and ranks of a node's rows, and the parts of their names."""

    stream: str
    rank: Ints
    form: Form
    first: Ints
    second: Ints


def _lane(rows: Attended | Merged | Sent) -> _Lane:
    match rows:
        case Attended(node=node):
            return _Lane("compute", node.rank, ("q ", " x kv "), node.q, node.kv)
        case Merged(node=node):
            if isinstance(node, Move):
                return _of_message("merge", "from", node, node.dst, node.src)
            return _Lane("merge", node.rank, ("add q ", " x kv "), node.q, node.kv)
        case Sent(node=node):
            return _of_message("send", "to", node, node.src, node.dst)


def _of_message(stream: str, word: str, node: Move, rank: Ints, peer: Ints) -> _Lane:
    form = f"{stream} {','.join(node.tensors)} ", f" {word} "
    return _Lane(stream, rank, form, node.blocks, peer[:, None])


def _attends_of_steps(timeline: Timeline) -> list[Span]:
    """One span per step and rank, for plans whose rows are too many to keep or to draw."""
    if timeline.steps is None:
        return []
    start, end = (times[:, :SHOWN] for times in (timeline.attend_start, timeline.attend_end))
    steps, ranks = np.nonzero(end > start)
    first = slice(0, MOST)
    return [
        Span(r, "compute", f"attends of step {s + 1}", s, float(start[s, r]), float(end[s, r]))
        for s, r in zip(steps[first].tolist(), ranks[first].tolist(), strict=True)
    ]


def columns(spans: Sequence[Span], whole: bool = True) -> Bars:
    """Spans by columns."""
    return Bars(
        np.array([s.rank for s in spans], np.int32),
        np.array([STREAMS.index(s.stream) for s in spans], np.int8),
        np.array([s.step for s in spans], np.int32),
        np.array([s.start for s in spans], np.float64),
        np.array([s.end for s in spans], np.float64),
        verbatim([s.name for s in spans]),
        whole,
    )
