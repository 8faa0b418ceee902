"""Load per rank and step, memory over time, bytes per link: facts as small tables."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.analysis.balance import loads
from planner.analysis.messages import message_bytes
from planner.ir import Plan
from ringloom.report.facts.legs import Leg
from ringloom.report.facts.spans import SHOWN


@dataclass(frozen=True, eq=False)
class Cells:
    """Cells that hold something, as columns of equal length, and how wide the table is."""

    column: NDArray[np.intp]
    row: NDArray[np.intp]
    value: NDArray[np.int64]
    columns: int
    rows: int


def load_of(plans: Sequence[Plan]) -> Cells:
    """Allowed (query, key, head) triples per round (columns) and rank (rows), passes in turn.

    Of the first ranks, as many as pictures show.
    """
    table = np.concatenate([loads(plan) for plan in plans])
    return cells(table.T[:SHOWN])


def links_of(plans: Sequence[Plan]) -> Cells:
    """Bytes from each rank (rows) to each rank (columns), all passes; the first ranks."""
    return cells(np.sum([sent(plan) for plan in plans], axis=0)[:SHOWN, :SHOWN])


def sent(plan: Plan) -> NDArray[np.int64]:
    """Bytes of all messages from rank to rank: int64 [ranks, ranks]."""
    table = np.zeros((plan.ranks, plan.ranks), np.int64)
    for number, move in plan.moves():
        np.add.at(table, (move.src, move.dst), message_bytes(plan, number, move))
    return table


def cells(table: NDArray[np.int64]) -> Cells:
    """The cells of a table [rows, columns] that are not 0."""
    row, column = np.nonzero(table)
    return Cells(column, row, table[row, column], table.shape[1], table.shape[0])


@dataclass(frozen=True, eq=False)
class Held:
    """Bytes on one rank over time: `bytes[n]` from `seconds[n]` on; `peak` of all its steps."""

    rank: int
    seconds: NDArray[np.float64]
    bytes: NDArray[np.int64]
    peak: int


def memory_of(legs: Sequence[Leg]) -> Held | None:
    """Memory of the rank that at some time holds most; None where it was too much to keep."""
    fullest = max(legs, key=lambda leg: leg.prediction.peak_bytes)
    if fullest.prediction.memory is None:
        return None
    rank, times, sizes = int(fullest.prediction.memory.peak.argmax()), [], []
    for leg in legs:
        used, timeline = leg.prediction.memory, leg.prediction.timeline
        if used is None or used.live is None or timeline is None or timeline.steps is None:
            return None
        times.append(timeline.begin[:, rank] + leg.offset)
        sizes.append(used.live[:, rank])
    last = legs[-1]
    seconds = np.concatenate([*times, [last.offset + last.prediction.makespan]])
    held = np.concatenate([*sizes, sizes[-1][-1:]]) if len(seconds) > 1 else np.zeros(1, np.int64)
    return Held(rank, seconds, held, int(held.max()))
