"""Cells and rectangles: what a program keeps sums in, and what is added to them.

A *cell* is what a program keeps running sums in: (tensor, value), the sums of one tensor for the
blocks of one value. In the cell of a value that travels is what the next message takes along.
"""

from dataclasses import dataclass

import numpy as np

from codegen.text import Flags
from planner.analysis.tiles import LIVE, tiles
from planner.ir import Plan
from planner.loops.form import Attend, Ints
from planner.partitions import Partition

Cell = tuple[str, str]  # tensor, value


def plain(s: Attend) -> bool:
    """True if nothing has to be cut out of a rectangle: it has no gaps, and a shape with a name."""
    return s.kind in ("full", "causal", "strict") and len(s.q) == len(s.kv) == 1


@dataclass(frozen=True)
class Rectangles:
    """The rectangles of an attend in a step: on which ranks [n], and their blocks [n, w].

    `tables` have all blocks of the two values [ranks, pieces, heads].
    """

    rank: Ints
    q: Ints
    kv: Ints
    tables: tuple[Ints, Ints]

    @property
    def rows(self) -> tuple[Ints, Ints]:
        """All pieces of both values, in their order, as blocks of any heads."""
        q, kv = (x[:, :, 0].take(self.rank, axis=0) for x in self.tables)
        return q, kv

    def attended(self, sides: Partition, rows: tuple[Ints, Ints]) -> Flags:
        """Of pairs of pieces, blocks of any heads [n, a] and [n, b], those that are attended."""
        q, kv = (
            np.array(
                [np.isin(side.chunk[x], side.chunk[y[y >= 0]]) for x, y in zip(*both, strict=True)],
                np.bool_,
            ).reshape(both[0].shape)
            for side, *both in ((sides.q, rows[0], self.q), (sides.kv, rows[1], self.kv))
        )
        return np.asarray(q[:, :, None] & kv[:, None, :])


def seen(plan: Plan, rows: tuple[Ints, Ints]) -> Flags:
    """Which pairs of pieces, blocks of any heads [n, a] and [n, b], the mask lets meet."""
    q, kv = plan.partition.q.chunk[rows[0]], plan.partition.kv.chunk[rows[1]]
    return np.asarray(tiles(plan).chunk_kinds[q[:, :, None], kv[:, None, :]] & LIVE, np.bool_)
