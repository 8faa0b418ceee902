"""Pieces of values as text: slices of tokens, and tiles of one shape.

Rectangles that every rank cuts differently become a loop over tiles of one shape. Under a causal
mask a piece of queries sees all pieces of keys before a certain one, and of that one the keys up to
itself. Which one that is follows from the rank.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from codegen.jax.cases import Case, Slice
from codegen.lowered.walk import Rectangles, seen
from codegen.text import Names, expression
from planner.analysis.kinds import CAUSAL, EMPTY, FULL, Kinds
from planner.errors import PlanError
from planner.ir import Attend, Plan
from planner.loops.fitting import plane
from planner.loops.form import Ints

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
                raise PlanError("parts of a shard are attended without their diagonal")
            return "slice(1, None)", "slice(0, -1)", True
        return rows, cols, case.kind == "causal"

    def text(self, part: Slice) -> str | None:
        """One half of the tokens; None for all."""
        first, last, of = part
        if (first, last) == (0, of - 1):
            return None
        if not self.equal:
            raise PlanError("pieces of queries and of keys differ in length")
        halves = of % 2 == 0 and self.halved in (None, of)
        if halves and first * 2 % of == 0 and (last + 1) * 2 % of == 0:
            return HALVES[first * 2 // of, (last + 1) * 2 // of]
        raise PlanError("attention calls take parts of a shard that are no halves")

    def definitions(self, case: Case, q: str, kv: str) -> Iterator[tuple[str, str]]:
        """The names of halves with their values, if a case needs them and has none yet."""
        for part, array in ((case.rows, q), (case.cols, kv)):
            if self.text(part) and self.halved is None:
                self.halved = part[2]
                yield "front, back", f"slice(half := {array}.shape[2] // 2), slice(half, None)"


def tiling(
    plan: Plan, rectangles: Rectangles, coordinates: Ints, names: Names
) -> tuple[tuple[str, ...], bool]:
    """For each piece of the queries, the number of pieces of keys that it sees whole, as text.

    True: besides, it sees the next piece up to itself. Raises PlanError where that is no rule.
    """
    (q, kv), sides = rectangles.rows, plan.partition
    everywhere = len(rectangles.rank) == len(coordinates) and (q >= 0).all() and (kv >= 0).all()
    if not everywhere or q.shape[1] > 2 or sides.q.sizes.max() != sides.kv.sizes.max():
        raise PlanError("attention calls differ in shape, or have many or unequal pieces")
    shape = len(q), q.shape[1], kv.shape[1]
    rows, cols = (np.broadcast_to(x, shape) for x in (q[:, :, None], kv[:, None, :]))
    live, inside = seen(plan, (q, kv)), rectangles.attended(sides, (q, kv))
    each = Attend(np.zeros(rows.size, np.intp), rows.reshape(-1, 1), cols.reshape(-1, 1))
    kinds = Kinds(plan).of(each).reshape(shape)
    kinds = np.where(live, kinds, EMPTY)
    count, number = (kinds == FULL).sum(axis=2, keepdims=True), np.arange(shape[2])
    diagonal = bool((kinds == CAUSAL).any())
    behind = np.where((number == count) & diagonal, CAUSAL, EMPTY)
    past = diagonal and (count == shape[2]).any()
    if (live & ~inside).any() or past or (kinds != np.where(number < count, FULL, behind)).any():
        raise PlanError("attention calls have other tiles than whole ones and then a causal one")
    at, now = coordinates[:, :-1], coordinates[:, -1] * 0
    fits = [plane(at, now, numbers) for numbers in count[:, :, 0].T]
    if not all(fits):
        raise PlanError("the tiles of attention calls follow no axis of the ranks")
    return tuple(expression(e, names) for e in fits if e), diagonal
