"""Facts of a prediction for pictures: its passes in turn, memory over time, bytes between ranks."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.analysis.balance import loads
from planner.analysis.messages import message_bytes
from planner.ir import Plan
from simulator.memory import Memory
from simulator.prediction import Prediction
from simulator.timeline import Floats, Timeline

MOST_CELLS = 128  # of a row of a table that is drawn
FEWEST_CELLS = 16  # of one that is summed over nodes


def passes(prediction: Prediction) -> list[tuple[Timeline, Memory, float]]:
    """Returns timeline, memory and beginning of each pass of a prediction, in turn."""
    return [
        (one.timeline, one.memory, begin)
        for one, begin in prediction.in_turn()
        if one.timeline is not None and one.memory is not None
    ]


def plans_of(prediction: Prediction) -> list[Plan]:
    """Returns the plan of each pass."""
    return [timeline.plan for timeline, _, _ in passes(prediction)]


@dataclass(frozen=True, eq=False)
class Usage:
    """Bytes on one rank over time: `bytes[n]` from `seconds[n]` on; `peak` of all its steps."""

    rank: int
    seconds: Floats
    bytes: NDArray[np.int64]
    peak: int


def usage(prediction: Prediction) -> Usage | None:
    """Memory of the rank that at any time holds most; None where times of steps were not kept."""
    parts = passes(prediction)
    if not parts or any(timeline.steps is None for timeline, _, _ in parts):
        return None
    rank = int(max((memory.peak for _, memory, _ in parts), key=np.max).argmax())
    times = [timeline.begin[:, rank] + begin for timeline, _, begin in parts]
    sizes = [memory.live[:, rank] for _, memory, _ in parts]
    seconds = np.concatenate([*times, [prediction.makespan]])
    held = np.concatenate([*sizes, sizes[-1][-1:]]) if len(seconds) > 1 else np.zeros(1, np.int64)
    return Usage(rank, seconds, held, int(held.max()))


def traffic_of(plans: Iterable[Plan]) -> NDArray[np.int64]:
    """Returns the bytes of all messages of all passes from rank to rank: int64 [ranks, ranks]."""
    first, *others = plans
    table = np.zeros((first.ranks, first.ranks), np.int64)
    for plan in (first, *others):
        for number, move in plan.moves():
            np.add.at(table, (move.src, move.dst), message_bytes(plan, number, move))
    return table


def work_of(plans: Iterable[Plan]) -> NDArray[np.int64]:
    """Returns the (query, key, head) triples that ranks attend in all passes: int64 [ranks]."""
    work: NDArray[np.int64] = np.sum([loads(plan).sum(axis=0) for plan in plans], axis=0)
    return work


def over_average(work: NDArray[np.int64]) -> Floats:
    """Returns the work of each rank over the average of all; 0 where there is none."""
    return work / (work.mean() or 1.0)


def by_nodes(table: NDArray[np.int64], node: int) -> tuple[NDArray[np.int64], int]:
    """Returns a table [ranks, ranks], where it is large summed over nodes of so many ranks, or over
    pairs of them and so on until it is not; and how many ranks a cell stands for.

    Nodes that leave few cells are not what is summed over: a pod may have more ranks than the plan.
    """
    ranks, cell = len(table), 1
    if FEWEST_CELLS * node <= ranks > MOST_CELLS:
        cell = node
    while -(-ranks // cell) > MOST_CELLS:
        cell *= 2
    edges = np.arange(0, ranks, cell)
    return np.add.reduceat(np.add.reduceat(table, edges, axis=0), edges, axis=1), cell
