"""Bars of a timeline: the spans of what ranks of a picture compute, merge, send and wait for.

compute, merge   |attend|       |attend|merge|
wait                     ------                 for a message, from when its source offered it
send             |KV 0 -> 1 ===|
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from planner.ir import Move
from simulator.facts import passes
from simulator.prediction import Prediction
from simulator.timeline import Span, Timeline, spans

FEW = 16  # ranks that a picture shows, unless all are asked for
MOST = 60_000  # spans of one schedule that a picture shows


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


def whole(prediction: Prediction) -> bool:
    """Returns False where a pass has so many rows that its bars are the attends of each step."""
    return all(map(_whole, (timeline for timeline, _, _ in passes(prediction))))


def _whole(timeline: Timeline) -> bool:
    return timeline.rows is not None and timeline.plan.rows <= MOST


def bars_of(prediction: Prediction, ranks: Sequence[int] | None = None) -> list[Span]:
    """Everything that some ranks, all by default, do in the passes of a prediction, in turn.

    Receives are left out: each is the send of another rank.
    """
    shown, every = set(range(prediction.ranks) if ranks is None else ranks), list[Span]()
    for timeline, _, at in passes(prediction):
        if _whole(timeline):
            done = [s for s in spans(timeline) if s.rank in shown and s.stream != "receive"]
            done += [s for s in waits(timeline) if s.rank in shown]
        else:
            done = _attends(timeline, shown)
        every += [replace(s, start=s.start + at, end=s.end + at) for s in done] if at else done
    return every


def waits(timeline: Timeline) -> Iterator[Span]:
    """Yields the waits of a timeline, each named after who is at the other end of its message."""
    other = dict[tuple[int, float], int]()
    for rows in timeline.rows or ():
        if rows.kind == "message" and isinstance(move := rows.node, Move):
            ends = move.src.tolist(), move.dst.tolist(), rows.arrival.tolist()
            for src, dst, arrival in zip(*ends, strict=True):
                other |= {(src, arrival): dst, (dst, arrival): src}
    for w in timeline.waits:
        yield Span(w.rank, "wait", f"waits for rank {other[w.rank, w.end]}", w.step, w.start, w.end)


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
