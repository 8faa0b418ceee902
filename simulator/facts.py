"""Data for pictures of a run: memory over time, bytes between ranks, bars of a timeline.

compute, merge   |attend|       |attend|merge|
wait                     ------                 for a message that was already sent
send             |KV 0 -> 1 ===|
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ringloom.planner.analysis.balance import loads
from ringloom.planner.analysis.messages import message_bytes
from ringloom.planner.ir import Move, Plan
from ringloom.simulator.memory import Memory
from ringloom.simulator.timeline import Floats, Run, Span, Timeline, spans

MOST_SPANS = 60_000  # spans of one schedule that a picture shows
MOST_CELLS = 128  # cells in a row of a drawn table
FEWEST_CELLS = 16  # cells in a row below which a table is not summed over nodes


def passes(run: Run) -> list[tuple[Timeline, Memory, float]]:
    """Returns the timeline, memory and start time of each pass of a prediction."""
    return [
        (part.timeline, part.memory, begin)
        for part, begin in run.in_turn()
        if part.timeline is not None and part.memory is not None
    ]


def plans_of(run: Run) -> list[Plan]:
    """Returns the plan of each pass of a prediction."""
    return [timeline.plan for timeline, _, _ in passes(run)]


@dataclass(frozen=True, eq=False)
class Usage:
    """The memory of one rank over time: `bytes[n]` from `seconds[n]` on, and their maximum."""

    rank: int
    seconds: Floats
    bytes: NDArray[np.int64]
    peak: int


def usage(run: Run) -> Usage | None:
    """Returns the memory of the rank with the highest peak; None if step times were not kept."""
    parts = passes(run)
    if not parts or any(timeline.steps is None for timeline, _, _ in parts):
        return None
    rank = int(max((memory.peak for _, memory, _ in parts), key=np.max).argmax())
    times = [timeline.begin[:, rank] + begin for timeline, _, begin in parts]
    sizes = [memory.live[:, rank] for _, memory, _ in parts]
    seconds = np.concatenate([*times, [run.makespan]])
    held = np.concatenate([*sizes, sizes[-1][-1:]]) if len(seconds) > 1 else np.zeros(1, np.int64)
    return Usage(rank, seconds, held, int(held.max()))


def traffic_of(plans: Iterable[Plan]) -> NDArray[np.int64]:
    """Returns the bytes from rank to rank, summed over all passes: int64 [ranks, ranks]."""
    first, *others = plans
    table = np.zeros((first.ranks, first.ranks), np.int64)
    for plan in (first, *others):
        for number, move in plan.moves():
            np.add.at(table, (move.src, move.dst), message_bytes(plan, number, move))
    return table


def work_of(plans: Iterable[Plan]) -> NDArray[np.int64]:
    """Returns the (query, key, head) triples that each rank computes: int64 [ranks]."""
    work: NDArray[np.int64] = np.sum([loads(plan).sum(axis=0) for plan in plans], axis=0)
    return work


def over_average(work: NDArray[np.int64]) -> Floats:
    """Returns the work of each rank divided by the average; 0 if there is no work."""
    return work / (work.mean() or 1.0)


def by_nodes(table: NDArray[np.int64], node: int) -> tuple[NDArray[np.int64], int]:
    """Returns a table [ranks, ranks] with at most MOST_CELLS cells a row, and the ranks per cell.

    A larger table is summed over nodes of `node` ranks, then over pairs of cells. Nodes do not
    count if they leave few cells, as in a pod that has more ranks than the plan.
    """
    ranks, cell = len(table), 1
    if FEWEST_CELLS * node <= ranks > MOST_CELLS:
        cell = node
    while -(-ranks // cell) > MOST_CELLS:
        cell *= 2
    edges = np.arange(0, ranks, cell)
    return np.add.reduceat(np.add.reduceat(table, edges, axis=0), edges, axis=1), cell


# ---- bars: compute, merges, sends and waits of the ranks in a picture


def has_rows(run: Run) -> bool:
    """Returns False if a pass has too many rows, so that each step of a rank has one bar."""
    return all(_has_rows(timeline) for timeline, _, _ in passes(run))


def _has_rows(timeline: Timeline) -> bool:
    return timeline.rows is not None and timeline.plan.rows <= MOST_SPANS


def bars_of(run: Run, ranks: Sequence[int] | None = None) -> list[Span]:
    """Returns the bars of some ranks, by default of all, in all passes of a prediction.

    Receives are left out, because they repeat the sends of other ranks.
    """
    shown, bars = set(range(run.ranks) if ranks is None else ranks), list[Span]()
    for timeline, _, at in passes(run):
        if _has_rows(timeline):
            new = [s for s in spans(timeline) if s.rank in shown and s.stream != "receive"]
            new += [s for s in waits(timeline) if s.rank in shown]
        else:
            new = _attends(timeline, shown)
        bars += [replace(s, start=s.start + at, end=s.end + at) for s in new] if at else new
    return bars


def waits(timeline: Timeline) -> Iterator[Span]:
    """Yields the waits of a timeline, named after the rank at the other end of the message."""
    other = dict[tuple[int, float], int]()
    for rows in timeline.rows or ():
        if rows.kind == "message" and isinstance(move := rows.node, Move):
            ends = move.src.tolist(), move.dst.tolist(), rows.arrival.tolist()
            for src, dst, arrival in zip(*ends, strict=True):
                other |= {(src, arrival): dst, (dst, arrival): src}
    for w in timeline.waits:
        yield Span(w.rank, "wait", f"waits for rank {other[w.rank, w.end]}", w.step, w.start, w.end)


def _attends(timeline: Timeline, ranks: set[int]) -> list[Span]:
    """Returns one span per step and rank, and the wait before it; for plans with many rows."""
    if timeline.steps is None:
        return []
    shown = np.array(sorted(ranks))
    begin, start, end = (times[:, shown] for times in timeline.steps)
    spans = list[Span]()
    for stream, since, until, name in (
        ("compute", start, end, "attends of step {}"),
        ("wait", begin, start, "waits for the inputs of step {}"),
    ):
        steps, places = (
            axis[: MOST_SPANS // 2] for axis in np.nonzero((until > since) & (end > start))
        )
        spans += [
            Span(r, stream, name.format(s + 1), s, float(since[s, p]), float(until[s, p]))  # type: ignore[arg-type]
            for s, p, r in zip(steps.tolist(), places.tolist(), shown[places].tolist(), strict=True)
        ]
    return spans
