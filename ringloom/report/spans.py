"""What streams did when, as columns of bars: the facts of the timeline."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ringloom.report.study import Leg
from simulator.timeline import Span, Timeline, spans

Floats = NDArray[np.float64]
STREAMS = ("compute", "merge", "send", "receive")
SHOWN = 64  # ranks that a picture shows
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
    found, whole = list[Span](), True
    for leg in legs:
        kept, every = _kept(leg.found.timeline)
        whole &= every
        found += [
            Span(s.rank, s.stream, s.name, s.step, s.start + leg.offset, s.end + leg.offset)
            for s in kept
        ]
    return columns([s for s in found if s.stream != "receive"], whole)


def _kept(timeline: Timeline | None) -> tuple[list[Span], bool]:
    if timeline is None:
        return [], False
    if timeline.rows is not None and timeline.plan.rows <= MOST:
        return [s for s in spans(timeline) if s.rank < SHOWN], True
    return _attends_of_steps(timeline), False


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
