"""Tables with an entry per rank and block, read for whole nodes at a time."""

import numpy as np
from numpy.typing import NDArray

from planner.cached import cached_on_plan
from planner.ir import ACCUMULATORS, HELD, TENSORS, Attend, Held, Index, Plan
from planner.partitions import Ints

Bits = NDArray[np.bool_]


class Cells:
    """The order of a table of ranks x blocks, with one more entry for block -1 on any rank.

    The entries of all ranks for the blocks of the rank d places further lie side by side: in a
    ring, all that ranks touch in one step is one stretch of memory, and a ring of 4,096 ranks takes
    two thirds of the time (benchmarks/bench_scale.py). Entries may be negative, from the table's
    end.
    """

    def __init__(self, ranks: int, owners: Ints) -> None:
        blocks, order = len(owners), np.argsort(owners, kind="stable")
        self._ranks, self._order, self._shift = ranks, order, max(1, blocks // ranks)
        self._rows = max(ranks, blocks + 1)
        self._rank = np.arange(ranks) * (1 - self._shift * ranks)
        self.size = ranks * self._rows
        self.nowhere = self.size - ranks  # the entry of block -1, above all others
        self._block = np.empty(blocks + 1, np.intp)
        self._block[order], self._block[-1] = np.arange(blocks) * ranks, 2 * self.size

    def of(self, rank: NDArray[np.integer], blocks: Ints) -> Index:
        """Returns the entries of the blocks [n, w] of each row's rank [n], by columns in memory."""
        entries: Index = self._block.take(blocks.T)
        entries += self._rank.take(rank)
        return np.minimum(entries, self.nowhere, out=entries).T

    def flat(self, rank: NDArray[np.integer], blocks: NDArray[np.integer]) -> Index:
        """Returns the entry of each block [n] on its rank [n]."""
        entries: Index = self._block[blocks] + self._rank[rank]
        return entries

    def at(self, entry: int) -> tuple[int, int]:
        """Returns the rank and the block of an entry."""
        row, rank = divmod(entry % self.size, self._ranks)
        return rank, int(self._order[(row + self._shift * rank) % self._rows])


@cached_on_plan  # every step asks again: benchmarks/bench_scale.py
def _cells(plan: Plan) -> dict[str, Cells]:
    return {s: Cells(plan.ranks, plan.partition.side(s).owners) for s in ("q", "kv")}


def cells(plan: Plan, tensor: str) -> Cells:
    """Returns the order of tables of ranks x blocks of a tensor."""
    return _cells(plan)[TENSORS[tensor].side]


def places(plan: Plan, tensor: str, rank: Ints, blocks: Ints) -> Index:
    """Returns the entries of the blocks [n, w] of each row's rank [n] in a flat table."""
    return cells(plan, tensor).of(rank, blocks)


def at_owner(plan: Plan, tensor: str) -> Index:
    """Returns the entry of each block of a tensor on its owner."""
    owners = plan.side(tensor).owners
    return cells(plan, tensor).flat(owners, np.arange(len(owners)))


def attended_blocks(attend: Attend, tensor: str) -> Ints:
    """Returns the blocks of the side of a tensor in each rectangle: [n, w]."""
    return attend.q if TENSORS[tensor].side == "q" else attend.kv


class Marks:
    """One bit per rank and block of a tensor; that of block -1 is always `nothing`."""

    def __init__(self, plan: Plan, tensor: str, nothing: bool = False) -> None:
        self.cells, self._nothing = cells(plan, tensor), nothing
        self.bits = np.zeros(self.cells.size, np.bool_)
        self.bits[self.cells.nowhere] = nothing

    def set(self, entries: Index, value: bool) -> None:
        """Mark or unmark entries [n, w] or [n]."""
        self.bits[entries] = value
        self.bits[self.cells.nowhere] = self._nothing

    def any(self, entries: Index) -> Bits:
        """Returns True for rows with a marked entry: bool [n]."""
        return np.asarray(self.bits[entries].any(axis=1))


def groups(plan: Plan) -> dict[tuple[str, ...], bool]:
    """Groups the tensors of a plan that are always together; True for those that leave owners.

    They are of one side and one kind, and part of the same messages and initial copies: what is
    true of one is true of all. STATS that ranks make of initial copies of OUT are their own group.
    """
    nodes = {move.tensors for _, move in plan.moves()} | {held.tensors for held in plan.start}
    together = dict[tuple[object, ...], list[str]]()
    for name in dict.fromkeys(HELD[plan.pass_] + ACCUMULATORS[plan.pass_]):
        tensor, made = TENSORS[name], name == "STATS" and ("OUT",) in nodes
        company = frozenset(tensors for tensors in nodes if name in tensors)
        key = bool(company) or made, tensor.side, tensor.accumulates, company, made
        together.setdefault(key, []).append(name)
    return {tuple(names): bool(leaves) for (leaves, *_), names in together.items()}


def readable(held: Held) -> tuple[str, ...]:
    """The inputs that attends may read of a held copy; with DOUT beside it, OUT makes STATS."""
    return ("STATS",) if held.tensors == ("OUT",) else held.tensors
