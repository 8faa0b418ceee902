"""Bars of a timeline by columns: what ranks of a picture compute, merge, send and wait for.

compute, merge   |attend|       |attend|merge|
wait                     ------                 for a message, from when its source offered it
send             |KV 0 -> 1 ===|
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.facts import passes
from simulator.prediction import Prediction
from simulator.timeline import Floats, Sent, Span, Timeline, spans

STREAMS = ("compute", "merge", "send", "receive", "wait")
FEW = 16  # ranks that a picture shows, unless all are asked for
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

    def only(self, ranks: Sequence[int]) -> "Bars":
        """Returns the bars of some ranks."""
        kept = np.flatnonzero(np.isin(self.rank, ranks))
        rank, stream, step = self.rank[kept], self.stream[kept], self.step[kept]
        names = tuple(self.names[n] for n in kept.tolist())
        return Bars(rank, stream, step, self.start[kept], self.end[kept], names, self.whole)


def representatives(prediction: Prediction, most: int = FEW) -> list[int]:
    """Returns all ranks where they are few; of many the busiest, the idlest, the median, and the
    first ranks of nodes, of nodes spread evenly where they are too many."""
    if prediction.ranks <= most:
        return list(range(prediction.ranks))
    order = np.argsort(prediction.busy, kind="stable")
    chosen = set(order[[0, prediction.ranks // 2, -1]].tolist())
    firsts = np.arange(0, prediction.ranks, prediction.ranks_per_node)
    spread = np.linspace(0, len(firsts) - 1, min(len(firsts), most - len(chosen))).astype(int)
    return sorted(chosen | set(firsts[spread].tolist()))


def bars_of(prediction: Prediction, ranks: Sequence[int] | None = None) -> Bars:
    """Everything that some ranks, all by default, do in the passes of a prediction, in turn.

    Receives are left out: each is the send of another rank.
    """
    shown = set(range(prediction.ranks) if ranks is None else ranks)
    every, whole = list[Span](), True
    for timeline, _, at in passes(prediction):
        kept = timeline.rows is not None and timeline.plan.rows <= MOST
        whole = whole and kept
        if kept:
            done = [s for s in spans(timeline) if s.rank in shown and s.stream != "receive"]
            done += waits(timeline, done)
        else:
            done = _attends(timeline, shown)
        every += [Span(s.rank, s.stream, s.name, s.step, s.start + at, s.end + at) for s in done]
    return columns(every, whole)


def waits(timeline: Timeline, done: Sequence[Span]) -> list[Span]:
    """Returns the times that ranks of some spans wait for messages which their sources offered.

    Each lies before what a rank computes or merges next: from when the rank was free and the
    message was offered, to its arrival. Raises RingloomError where rows were not kept.
    """
    work = [s for s in done if s.stream in ("compute", "merge")]
    sent = [rows for rows in timeline.rows or () if isinstance(rows, Sent)]
    if not work or not sent:
        return []
    span = 2.0 * timeline.end  # ranks lie apart on one axis
    rank = np.array([s.rank for s in work])
    start, end = (np.array([getattr(s, name) for s in work]) for name in ("start", "end"))
    order = np.lexsort((start, rank))
    rank, start, end = rank[order], start[order], end[order]
    same = np.concatenate([[False], rank[1:] == rank[:-1]])
    free = np.where(same, np.concatenate([[0.0], end[:-1]]), 0.0)
    src, dst = (
        np.concatenate([getattr(rows.node, name) for rows in sent]) for name in ("src", "dst")
    )
    arrival = np.concatenate([rows.arrival for rows in sent])
    offered = np.concatenate([timeline.begin[rows.step, rows.node.src] for rows in sent])
    by_time = np.argsort(dst * span + arrival, kind="stable")
    moments = (dst * span + arrival)[by_time]
    place = np.searchsorted(moments, rank * span + start + 1e-9 * timeline.end, "right") - 1
    last = by_time[np.maximum(place, 0)]
    since = np.maximum(free, offered[last])
    waited = (place >= 0) & (dst[last] == rank) & (arrival[last] > since) & (start > free)
    return [
        Span(rank, "wait", f"waits for rank {source}", work[n].step, begun, until)
        for n, rank, source, begun, until in zip(
            order[waited].tolist(),
            rank[waited].tolist(),
            src[last][waited].tolist(),
            since[waited].tolist(),
            arrival[last][waited].tolist(),
            strict=True,
        )
    ]


def _attends(timeline: Timeline, ranks: set[int]) -> list[Span]:
    """Returns a span per step and rank, and the wait before it, for plans of too many rows."""
    if timeline.steps is None:
        return []
    shown = np.array(sorted(ranks))
    begin, start, end = (times[:, shown] for times in timeline.steps)
    spans = list[Span]()
    for stream, since, until, name in (
        ("compute", start, end, "attends of step {}"),
        ("wait", begin, start, "waits for the inputs of step {}"),
    ):
        steps, places = (axis[: MOST // 2] for axis in np.nonzero((until > since) & (end > start)))
        spans += [
            Span(r, stream, name.format(s + 1), s, float(since[s, p]), float(until[s, p]))  # type: ignore[arg-type]
            for s, p, r in zip(steps.tolist(), places.tolist(), shown[places].tolist(), strict=True)
        ]
    return spans


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
