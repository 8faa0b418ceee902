"""Bars of a timeline by columns: what ranks of a picture compute, merge, send and wait for.

compute, merge   |attend|       |attend|merge|
wait                     ------                 for a message, from when its source offered it
send             |KV 0 -> 1 ===|
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import attrgetter, itemgetter

import numpy as np
from numpy.typing import NDArray

from planner.ir import Move
from simulator.facts import passes
from simulator.prediction import Prediction
from simulator.timeline import STREAMS, Floats, Span, Timeline, spans

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
        every += [replace(s, start=s.start + at, end=s.end + at) for s in done] if at else done
    return columns(every, whole)


def waits(timeline: Timeline, done: Sequence[Span]) -> list[Span]:
    """Returns the times that ranks of some spans wait for messages which their sources offered.

    Each lies before what a rank computes or merges next: from when the rank was free and the
    message was offered, to its arrival. Raises RingloomError where rows were not kept.
    """
    messages = defaultdict[int, list[tuple[float, int, float]]](list)  # arrival, source, offer
    for rows in timeline.rows or ():
        if rows.kind == "message" and isinstance(move := rows.node, Move):
            offered = timeline.begin[rows.step, move.src]
            columns = move.dst, rows.arrival, move.src, offered
            for dst, *message in zip(*(column.tolist() for column in columns), strict=True):
                messages[dst].append(tuple(message))
    for arriving in messages.values():
        arriving.sort(key=itemgetter(0))
    work = (s for s in done if s.stream in ("compute", "merge"))
    waited, free, near = list[Span](), defaultdict[int, float](float), 1e-9 * timeline.end
    for s in sorted(work, key=attrgetter("rank", "start")):
        came = bisect_right(messages[s.rank], s.start + near, key=itemgetter(0))
        if came and s.start > free[s.rank]:
            arrival, source, offered = messages[s.rank][came - 1]
            if arrival > (since := max(free[s.rank], offered)):
                name = f"waits for rank {source}"
                waited.append(Span(s.rank, "wait", name, s.step, since, arrival))
        free[s.rank] = s.end
    return waited


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
