"""shares_of(...)   the heads that each rank gets of everybody's part in an exchange.
head_of(attends)   the slice of the heads of queries that attends are of, in each step.
apart(...)         the statements of a loop, and those that stand before it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from planner.errors import PlanError
from planner.ir import Plan
from planner.loops.form import OWN, Attend, Exchange, Expr, Loops, Statement


@dataclass(frozen=True)
class Shares:
    """The heads that ranks get: of `slices` of them the `first` and `every` n-th one from there.

    `first` may rise with the step.

    Each rank gets the next of them in turn, or each of them goes to `copies` ranks in a row; unless
    all ranks get the same (`gathered`).
    """

    gathered: bool
    first: Expr = field(default=Expr())
    every: int = 1
    slices: int = 1
    copies: int = 1

    def after(self, steps: int) -> "Shares":
        """Those of so many steps ago."""
        rounds, phase = divmod(self.first.phase + steps, self.first.period)
        constant = self.first.constant - self.first.step * rounds
        return replace(self, first=replace(self.first, constant=constant, phase=phase))


def shares_of(plan: Plan, loops: Loops, s: Exchange) -> Shares:
    """The shares of an exchange; PlanError unless they are as many heads as the next one's."""
    if s.heads is None:
        return Shares(True)
    side, n = plan.partition.side(s.side), loops.mesh[s.axis]
    slices, counts = len(side.slices), set(side.head_counts.tolist())
    first, last = s.heads
    if first != last:
        raise PlanError("a rank gets heads from several places")
    if len(counts) > 1:
        raise PlanError(f"ranks share out their heads {sorted(counts)} at a time, not evenly")
    at = np.zeros((n, len(loops.mesh) + 1), np.intp)
    at[:, s.axis] = np.arange(n)
    given = first.at(0, at)
    low = int(given[0])
    rising = replace(first, axes=()) if first.step and not first.table else Expr(low)
    if (given == low).all() and n > 1:
        return Shares(True, rising, slices, slices)
    every, copies = max(1, slices // n), max(1, n // slices)
    if slices * copies != every * n or (given != low + every * (at[:, s.axis] // copies)).any():
        raise PlanError("heads go to ranks in another order than that of the ranks")
    return Shares(False, rising, every, slices, copies)


def head_of(attends: Sequence[Attend]) -> Expr | None:
    """The slice of the heads of queries that attends are of, None for all.

    Raises PlanError for several of them, and for some heads of keys.
    """
    if any(p.heads is not None for s in attends for p in s.kv):
        raise PlanError("a rank computes with some of the KV heads that it has")
    ends, *others = {p.heads for s in attends for p in s.q}
    if others or (ends and (ends[0] != ends[1] or ends[0].axes or ends[0].table)):
        raise PlanError("a rank computes some of its heads at a time, in several calls")
    return ends[0] if ends else None


def apart(loops: Loops, steps: range) -> Iterator[tuple[range, tuple[Statement, ...]]]:
    """Steps and their statements; before a loop that begins with exchanges, those of one step."""
    running = [s for s in loops.statements if any(map(s.when.on, steps))]
    now = [s for s in running if s.when.on(steps[0])]
    once = [s for s in now if isinstance(s, Exchange) and not s.again]
    only = all(isinstance(s, Exchange) and s.part.value == OWN for s in now)
    if once and only and len(steps) > 1:
        yield steps[:1], tuple(once)
        running = [s for s in running if s not in once]
    yield steps, tuple(running)
