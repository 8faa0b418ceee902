"""Where a value comes from: the rank that owns its tokens, as a formula of rank and step."""

from collections.abc import Sequence

import numpy as np

from codegen.jax.trace import Rectangles, Trace
from codegen.jax.words import Names, count, linear
from planner.errors import PlanError
from planner.loops.form import OWN, Ints
from planner.loops.values import owned
from planner.partitions import Side


def origin(
    value: str, rows: Sequence[tuple[int, Ints, Ints]], side: Side, ranks: int, names: Names
) -> str:
    """The owner of a value, as text; rows: step, ranks [n], all blocks of the value [n, w].

    Raises PlanError unless a rank has all pieces of one other rank, so many ranks away.
    """
    if value == OWN:
        return "rank"
    if len(names.axes) > 1:
        raise PlanError("masked tiles of values that travel along axes of a mesh")
    own, away = owned(ranks, side).reshape(ranks, -1), dict[int, int]()
    for t, who, blocks in rows:
        homes = side.homes[blocks[:, 0]]
        if blocks.shape != own[homes].shape or not np.array_equal(blocks, own[homes]):
            raise PlanError("masked tiles of some pieces of a value")
        far = np.unique((homes - who) % ranks)
        if len(far) != 1:
            raise PlanError("masked tiles of values that come from different distances")
        away[t] = int(far[0])
    first = min(away)
    slope = (away.get(first + 1, away[first]) - away[first] + ranks // 2) % ranks - ranks // 2
    if any((away[first] + slope * (t - first) - d) % ranks for t, d in away.items()):
        raise PlanError("masked tiles of values whose way is not the same in each step")
    constant = away[first] + slope * (names.first - first)
    constant = (constant + ranks // 2) % ranks - ranks // 2
    if names.step.lstrip("-").isdecimal():
        constant = (away[first] + ranks // 2) % ranks - ranks // 2
        slope = 0
    text = linear([(1, "rank"), (slope, names.step)], constant)
    return text if text == "rank" else f"({text}) % {count(ranks, names)}"


def rows_of(trace: Trace, n: int, steps: Sequence[int], side: str) -> list[tuple[int, Ints, Ints]]:
    """The ranks of an attend and the blocks of its value, in each of these steps."""
    made = []
    for t in steps:
        r = trace.rows[t].get(n)
        if isinstance(r, Rectangles) and len(r.rank):
            made.append((t, r.rank, r.q_row if side == "q" else r.kv_row))
    return made
