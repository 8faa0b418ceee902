"""Who attends what in which round, cell by cell: what terminals and figures draw grids from."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.analysis.tiles import Tiles, tiles
from planner.ir import Plan

Blocks = NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class Cell:
    """A rectangle of blocks that `rank` attends in `round`; `full` if the mask hides no pair."""

    round: int
    rank: int
    q: Blocks
    kv: Blocks
    full: bool


def cells(plan: Plan, rounds: int | None = None) -> Iterator[Cell]:
    """The rectangles of the first rounds, all by default; rounds count steps that attend."""
    table = tiles(plan)
    attending = [step for step in plan.steps if step.attends][:rounds]
    for number, step in enumerate(attending):
        for attend in step.attends:
            for rank, q, kv in zip(attend.rank.tolist(), attend.q, attend.kv, strict=True):
                q, kv = q[q >= 0], kv[kv >= 0]
                yield Cell(number, rank, q, kv, _is_full(plan, table, q, kv))


def _is_full(plan: Plan, table: Tiles, q: Blocks, kv: Blocks) -> bool:
    sides = plan.partition
    area = table.areas[np.ix_(sides.q.chunk[q], sides.kv.chunk[kv])].sum()
    return bool(area == sides.q.sizes[q].sum() * sides.kv.sizes[kv].sum())
