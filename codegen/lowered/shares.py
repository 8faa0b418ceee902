"""shares_of(...)   the heads that each rank gets of everybody's part in an exchange.
head_of(attends)   the slice of the heads of queries that attends are of.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.errors import PlanError
from planner.ir import Plan
from planner.loops.form import Attend, Exchange, Expr, Loops


@dataclass(frozen=True)
class Shares:
    """The heads that ranks get: of `slices` of them the `first` and `every` n-th one from there.

    Each rank gets the next of them in turn, or each of them goes to `copies` ranks in a row; unless
    all ranks get the same (`gathered`).
    """

    gathered: bool
    first: int = 0
    every: int = 1
    slices: int = 1
    copies: int = 1


def shares_of(plan: Plan, loops: Loops, s: Exchange) -> Shares:
    """The shares of an exchange; PlanError unless they are as many heads as the next one's."""
    if s.heads is None:
        return Shares(True)
    side, n = plan.partition.side(s.side), loops.mesh[s.axis]
    slices, counts = len(side.slices), set(side.head_counts.tolist())
    first, last = s.heads
    if first != last:
        raise PlanError("heads are shared in several slices")
    if len(counts) > 1:
        raise PlanError(f"{slices} slices of heads among {n} ranks, {sorted(counts)} heads each")
    at = np.zeros((n, len(loops.mesh) + 1), np.intp)
    at[:, s.axis] = np.arange(n)
    given = first.at(0, at)
    low = int(given[0])
    if (given == low).all() and n > 1:
        return Shares(True, low, slices, slices)
    every, copies = max(1, slices // n), max(1, n // slices)
    if slices * copies != every * n or (given != low + every * (at[:, s.axis] // copies)).any():
        raise PlanError("heads are shared in another order than ranks")
    return Shares(False, low, every, slices, copies)


def head_of(attends: Sequence[Attend]) -> int | None:
    """The slice of the heads of queries that attends are of, None for all.

    Raises PlanError for several of them, and for some heads of keys.
    """
    if any(p.heads is not None for s in attends for p in s.kv):
        raise PlanError("a rank attends some of the heads of keys that it has")
    ends, *others = {p.heads for s in attends for p in s.q}
    if others or (ends and ends != (Expr(ends[0].constant),) * 2):
        raise PlanError("a rank attends several slices of the heads that it has")
    return ends[0].constant if ends else None
