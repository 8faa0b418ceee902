"""Rectangles that every rank cuts differently, as a loop over tiles of one shape.

Under a causal mask a piece of queries sees all pieces of keys before a certain one, and of that one
the keys up to itself. Which one that is follows from the rank.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from codegen.jax.trace import Rectangles
from codegen.jax.words import Names, linear
from planner.analysis.tiles import tiles
from planner.errors import PlanError
from planner.ir import Plan
from planner.loops.form import Ints
from planner.loops.kinds import KINDS, Kinds

FULL, CAUSAL = KINDS.index("full"), KINDS.index("causal")


@dataclass(frozen=True)
class Tiling:
    """Of each piece of the queries: how many pieces of keys it sees whole, and which in part."""

    whole: tuple[str, ...]
    part: tuple[str, ...]
    total: str  # of whole tiles


def tiling(plan: Plan, rectangles: Rectangles, coordinates: Ints, names: Names) -> Tiling:
    """The tiles of a rectangle on all ranks; PlanError where they follow no such rule."""
    q, kv = rectangles.q_row, rectangles.kv_row
    if len(rectangles.rank) != len(coordinates) or (q < 0).any() or (kv < 0).any():
        raise PlanError("rectangles of different shapes on some of the ranks")
    shape = len(q), q.shape[1], kv.shape[1]
    rows, cols = (np.broadcast_to(x, shape) for x in (q[:, :, None], kv[:, None, :]))
    sides = plan.partition
    live = tiles(plan).areas[sides.q.chunk[rows], sides.kv.chunk[cols]] > 0
    kinds = Kinds(plan).of(rows.reshape(-1, 1), cols.reshape(-1, 1)).reshape(shape)
    inside = _inside(rows, rectangles.q) & _inside(cols, rectangles.kv)
    whole, part = live & (kinds == FULL), live & (kinds == CAUSAL)
    if (live & ~inside).any() or (live & ~whole & ~part).any() or (part.sum(axis=2) > 1).any():
        raise PlanError("rectangles of which no tiles of one shape are all that is seen")
    count = whole.sum(axis=2)
    if (whole != (np.arange(shape[2]) < count[:, :, None])).any():
        raise PlanError("rectangles whose whole tiles are not the first ones")
    if not (part.any(axis=2).all() or not part.any()):
        raise PlanError("rectangles with a diagonal on some ranks only")
    fit = [_fit(count[:, p], coordinates, names) for p in range(shape[1])]
    diagonal = part.argmax(axis=2) if part.any() else np.zeros((len(q), 0), np.intp)
    return Tiling(
        tuple(fit),
        tuple(_fit(diagonal[:, p], coordinates, names) for p in range(diagonal.shape[1])),
        _fit(count.sum(axis=1), coordinates, names),
    )


def _inside(blocks: Ints, rectangle: Ints) -> Ints:
    """Which of the blocks [n, a, b] are in a rank's rectangle."""
    flags = [np.isin(x, own) for x, own in zip(blocks, rectangle, strict=True)]
    return np.stack(flags)


def _fit(numbers: Ints, coordinates: Ints, names: Names) -> str:
    """Numbers of the ranks as a multiple of a coordinate and a constant."""
    for axis, name in enumerate(names.axes):
        x = coordinates[:, axis]
        first, other = numbers[x == 0][0], numbers[x == min(1, x.max())][0]
        if np.array_equal(numbers, first + (other - first) * x):
            return linear([(int(other - first), name)], int(first))
    raise PlanError("rectangles whose tiles follow no coordinate")


def tile_lines(made: Tiling) -> Sequence[str]:
    """The number of the piece of queries and of the piece of keys in tile n, as two lines."""
    if len(made.whole) == 1:
        return []
    if len(made.whole) > 2:
        raise PlanError(f"rectangles of {len(made.whole)} pieces that ranks cut differently")
    first = made.whole[0]
    behind = f"n - ({first})" if " " in first else f"n - {first}"
    return [
        f"front = n < {first}",
        f"row, col = jnp.where(front, 0, 1), jnp.where(front, n, {behind})",
    ]
