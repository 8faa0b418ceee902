"""Spans of all streams as columns of bars: the facts of the timeline."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.facts import legs
from simulator.prediction import Prediction
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
    names: tuple[str, ...]
    whole: bool = True

    def __len__(self) -> int:
        return len(self.rank)


def bars_of(prediction: Prediction) -> Bars:
    """Everything that the first ranks do in the passes of a prediction, in turn.

    Receives are left out: each is the send of another rank.
    """
    every, whole = list[Span](), True
    for leg in legs(prediction):
        timeline, at = leg.timeline, leg.offset
        kept = timeline.rows is not None and timeline.plan.rows <= MOST
        whole = whole and kept
        of_pass = spans(timeline) if kept else _attends_of_steps(timeline)
        every += [Span(s.rank, s.stream, s.name, s.step, s.start + at, s.end + at) for s in of_pass]
    return columns([s for s in every if s.rank < SHOWN and s.stream != "receive"], whole)


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
        tuple(s.name for s in spans),
        whole,
    )
