"""Pieces of values as text: slices of tokens, and tiles of one shape.

Rectangles that every rank cuts differently become a loop over tiles of one shape. Under a causal
mask a piece of queries sees all pieces of keys before a certain one, and of that one the keys up to
itself. Which one that is follows from the rank.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from codegen.jax.cases import Case, Slice
from codegen.lowered.sums import Rectangles
from codegen.text import Names, affine
from planner.analysis.marks import Bits
from planner.analysis.tiles import tiles
from planner.errors import PlanError
from planner.ir import Plan
from planner.loops.form import Ints
from planner.loops.kinds import KINDS, Kinds

HALVES = {(0, 1): "front", (1, 2): "back"}


@dataclass
class Slices:
    """The halves that a pass uses.

    `equal`: pieces have as many queries as keys. `halved`: the pieces of a value that has halves,
    None while these have no names.
    """

    equal: bool
    halved: int | None = None

    def of(self, case: Case) -> tuple[str | None, str | None, bool]:
        """Rows and columns as text, None for all of them, and whether the mask is causal."""
        rows, cols = self.text(case.rows), self.text(case.cols)
        if case.kind == "strict":
            if rows or cols:
                raise PlanError("some pieces under a mask that leaves out the diagonal")
            return "slice(1, None)", "slice(0, -1)", True
        return rows, cols, case.kind == "causal"

    def text(self, part: Slice) -> str | None:
        """One half of the tokens; None for all."""
        first, last, of = part
        if (first, last) == (0, of - 1):
            return None
        if not self.equal:
            raise PlanError("slices of pieces that have more queries than keys, or fewer")
        halves = of % 2 == 0 and self.halved in (None, of)
        if halves and first * 2 % of == 0 and (last + 1) * 2 % of == 0:
            return HALVES[first * 2 // of, (last + 1) * 2 // of]
        raise PlanError("slices of pieces that are no halves")

    def definitions(self, case: Case, q: str, kv: str) -> Iterator[tuple[str, str]]:
        """The names of halves with their values, if a case needs them and has none yet."""
        for part, array in ((case.rows, q), (case.cols, kv)):
            if self.text(part) and self.halved is None:
                self.halved = part[2]
                yield "front, back", f"slice(half := {array}.shape[2] // 2), slice(half, None)"


FULL, CAUSAL = KINDS.index("full"), KINDS.index("causal")


def tiling(
    plan: Plan, rectangles: Rectangles, coordinates: Ints, names: Names
) -> tuple[list[str], bool]:
    """For each piece of the queries, the number of pieces of keys that it sees whole, as text.

    True: besides, it sees the next piece up to itself. Raises PlanError where that is no rule.
    """
    q, kv = rectangles.rows
    if len(rectangles.rank) != len(coordinates) or (q < 0).any() or (kv < 0).any():
        raise PlanError("rectangles of different shapes on some of the ranks")
    if q.shape[1] > 2:
        raise PlanError(f"rectangles of {q.shape[1]} pieces that ranks cut differently")
    shape = len(q), q.shape[1], kv.shape[1]
    rows, cols = (np.broadcast_to(x, shape) for x in (q[:, :, None], kv[:, None, :]))
    sides = plan.partition
    live, inside = met(plan, rectangles)
    if sides.q.sizes.max() != sides.kv.sizes.max():
        raise PlanError("tiles of fewer queries than keys, or of more")
    kinds = Kinds(plan).of(rows.reshape(-1, 1), cols.reshape(-1, 1)).reshape(shape)
    whole, part = live & (kinds == FULL), live & (kinds == CAUSAL)
    if (live & ~inside).any() or (live & ~whole & ~part).any() or (part.sum(axis=2) > 1).any():
        raise PlanError("rectangles of which no tiles of one shape are all that is seen")
    count = whole.sum(axis=2)
    if (whole != (np.arange(shape[2]) < count[:, :, None])).any():
        raise PlanError("rectangles whose whole tiles are not the first ones")
    if not (part.any(axis=2).all() or not part.any()):
        raise PlanError("rectangles with a diagonal on some ranks only")
    diagonal = bool(part.any())
    if diagonal and (part.argmax(axis=2) != count).any():
        raise PlanError("rectangles whose diagonal is not behind what is seen whole")
    return [_fit(count[:, p], coordinates, names) for p in range(shape[1])], diagonal


def met(plan: Plan, r: Rectangles) -> tuple[Bits, Bits]:
    """Of the pieces of both values, which see each other, and which are attended: [n, a, b]."""
    partition, (q_row, kv_row) = plan.partition, r.rows
    sides = ((partition.q, q_row, r.q), (partition.kv, kv_row, r.kv))
    chunks = [side.chunk[row] for side, row, _ in sides]
    rows, cols = (
        np.array(
            [np.isin(own, side.chunk[x[x >= 0]]) for own, x in zip(chunk, blocks, strict=True)]
        )
        for chunk, (side, _, blocks) in zip(chunks, sides, strict=True)
    )
    seen = tiles(plan).areas[chunks[0][:, :, None], chunks[1][:, None, :]] > 0
    return seen, rows[:, :, None] & cols[:, None, :]


def _fit(numbers: Ints, coordinates: Ints, names: Names) -> str:
    """Numbers of the ranks as a multiple of a coordinate and a constant."""
    for axis, name in enumerate(names.axes):
        x = coordinates[:, axis]
        first, other = numbers[x == 0][0], numbers[x == min(1, x.max())][0]
        if np.array_equal(numbers, first + (other - first) * x):
            return affine([(int(other - first), name)], int(first))
    raise PlanError("rectangles whose tiles follow no coordinate")
