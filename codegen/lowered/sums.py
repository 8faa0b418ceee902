"""Sums   the facts of a pass: what attends and messages add to, and what leaves in which step.

A *cell* is what a program keeps running sums in: (tensor, value), the sums of one tensor for the
blocks of one value. In the cell of a value that travels is what the next message takes along.
`walk` finds them.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from codegen.text import Flags
from planner.analysis.tiles import LIVE, tiles
from planner.errors import PlanError
from planner.ir import Plan
from planner.loops.form import OWN, Attend, Ints, Part, Statement
from planner.loops.values import sliced
from planner.partitions import Partition

Cell = tuple[str, str]  # tensor, value


def plain(s: Attend) -> bool:
    """True if nothing has to be cut out of a rectangle: it has no gaps, and a shape with a name."""
    return s.kind in ("full", "causal", "strict") and len(s.q) == len(s.kv) == 1


@dataclass(frozen=True)
class Rectangles:
    """The rectangles of an attend in a step, and on which ranks.

    `tables` have all blocks of the two values [ranks, pieces, heads], `where` has coordinates.
    """

    attend: Attend
    t: int
    rank: Ints
    tables: tuple[Ints, Ints]
    where: Ints

    @property
    def q(self) -> Ints:
        """The blocks of queries [n, w]."""
        return self._blocks(self.attend.q, self.tables[0])

    @property
    def kv(self) -> Ints:
        """The blocks of keys [n, w]."""
        return self._blocks(self.attend.kv, self.tables[1])

    def _blocks(self, parts: tuple[Part, ...], table: Ints) -> Ints:
        table, where = table.take(self.rank, axis=0), self.where.take(self.rank, axis=0)
        return np.hstack([sliced(table, part, self.t, where) for part in parts])

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


@dataclass
class Walk:
    """The sums of a pass, by statement and step."""

    pieces: dict[tuple[str, str], int]  # of each value: side, name
    tables: dict[tuple[str, str], Ints]  # of values that stay
    aged: dict[tuple[str, str, int], Ints]  # side, name, step
    targets: dict[Statement, dict[int, dict[str, Cell]]] = field(default_factory=dict)  # by tensor
    into: dict[Statement, dict[int, Cell]] = field(default_factory=dict)  # of messages
    source: dict[Statement, Cell] = field(default_factory=dict)  # of messages
    widths: dict[tuple[str, str], set[int]] = field(default_factory=dict)  # where attends read it
    attended: dict[Statement, dict[int, Rectangles]] = field(default_factory=dict)
    whole: dict[Cell, bool] = field(default_factory=dict)  # every addition is of all pieces
    kept: dict[Cell, int] = field(default_factory=dict)  # step in which owners keep their sums
    taken: dict[Cell, set[int]] = field(default_factory=dict)  # steps in which sums leave
    holders: dict[Cell, dict[int, Ints]] = field(default_factory=dict)  # ranks that have these
    sent: dict[Cell, set[int]] = field(default_factory=dict)  # and from rank to rank
    crowded: set[Cell] = field(default_factory=set)  # something is added to what is there
    again: set[Cell] = field(default_factory=set)  # the same heads are added to several times
    parted: set[Cell] = field(default_factory=set)  # additions are of some heads each

    def additions(self) -> Iterator[tuple[Statement, int, Cell]]:
        """Each addition to a cell in a step: of an attend, or of a message that arrives."""
        for s, steps in self.targets.items():
            yield from ((s, t, cell) for t, cells in steps.items() for cell in cells.values())
        for s, into in self.into.items():
            yield from ((s, t, cell) for t, cell in into.items())

    def lasting(self, cell: Cell) -> tuple[set[int], set[int]]:
        """The steps in which sums begin with nothing, and those through whose start they stay."""
        added, taken = {t for _, t, c in self.additions() if c == cell}, self.taken.get(cell, set())
        if cell[1] == OWN:  # what some owners send, and others keep
            added |= {t for c, t in self.kept.items() if c[0] == cell[0]}
            taken = taken - {self.kept.get(cell, -1)}
        begun, stay, full = set[int](), set[int](), False
        for t in range(min(added, default=0), max(added | taken, default=-1) + 1):
            full = full and t not in taken
            if full:
                stay.add(t)
            elif t in added:
                begun.add(t)
            full = full or t in added
        return begun, stay

    def width(self, side: str, name: str) -> int:
        """The number of pieces of a value where attends read it, the same in all steps."""
        if len(self.widths[side, name]) > 1:
            raise PlanError(f"{name} has more pieces in some steps than in others")
        return min(self.widths[side, name])

    def accumulates(self, cell: Cell) -> bool:
        """True if sums begin with nothing."""
        return cell in self.parted or not self.complete(cell)

    def complete(self, cell: Cell) -> bool:
        """True if what is added once is all there is of it."""
        return cell not in self.crowded and self.whole[cell]
