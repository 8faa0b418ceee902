"""Tables with an entry per rank and block, with access to all entries of a node at a time."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from ringloom.planner.cached import cached_on_plan
from ringloom.planner.ir import ACCUMULATORS, INITIAL, INPUTS, TENSORS, Attend, Index, Plan
from ringloom.planner.partitions import Ints

Bits = NDArray[np.bool_]


class Cells:
    """The memory order of a table of ranks x blocks, with one entry for block -1 on all ranks.

    For each distance d, the entries of all ranks for the blocks of the rank d places later are
    contiguous. So all entries of a step of a ring are contiguous, and a ring of 4,096 ranks takes
    two thirds of the time (benchmarks/bench_scale.py). Negative entries count from the end. `owned`
    is the entry of each block on its owner.
    """

    def __init__(self, ranks: int, owners: Ints) -> None:
        blocks, order = len(owners), np.argsort(owners, kind="stable")
        self._ranks, self._order, self._shift = ranks, order, max(1, blocks // ranks)
        self._rows = max(ranks, blocks + 1)
        self._rank = np.arange(ranks) * (1 - self._shift * ranks)
        self.size = ranks * self._rows
        self.nowhere = self.size - ranks  # the entry of block -1, the largest
        self._block = np.empty(blocks + 1, np.intp)
        self._block[order], self._block[-1] = np.arange(blocks) * ranks, 2 * self.size
        self.owned = self.flat(owners, np.arange(blocks))

    def of(self, rank: NDArray[np.integer], blocks: Ints) -> Index:
        """Returns the entries of blocks [n, w] on the rank of each row [n], column-major."""
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


@cached_on_plan  # used in every step: benchmarks/bench_scale.py
def _cells(plan: Plan) -> dict[str, Cells]:
    return {s: Cells(plan.ranks, plan.partition.side(s).owners) for s in ("q", "kv")}


class Table:
    """A number per rank and block of a tensor, initially 0, but `default` for block -1.

    table[rank, blocks] selects the blocks [n, w] on the rank of each row [n]. For repeated access
    to the same entries, index by the result of `of`. Allocates no memory for unused entries.
    """

    def __init__(
        self, plan: Plan, tensor: str, dtype: DTypeLike = np.bool_, default: int = 0
    ) -> None:
        self.cells, self._default = _cells(plan)[TENSORS[tensor].side], default
        self.of = self.cells.of
        self.flat = np.zeros(self.cells.size, dtype)
        self.flat[self.cells.nowhere] = default

    def __getitem__(self, key: Index | tuple[Ints, Ints]) -> NDArray[Any]:
        return self.flat[self.of(*key) if isinstance(key, tuple) else key]

    def __setitem__(self, key: Index | tuple[Ints, Ints], values: ArrayLike) -> None:
        self.flat[self.of(*key) if isinstance(key, tuple) else key] = values
        self.flat[self.cells.nowhere] = self._default


def attended_blocks(attend: Attend, tensor: str) -> Ints:
    """Returns the blocks of each rectangle on the tensor's side: [n, w]."""
    return attend.q if TENSORS[tensor].side == "q" else attend.kv


def group_tensors(plan: Plan) -> dict[tuple[str, ...], bool]:
    """Groups the tensors of a plan that always travel together; True if they leave their owners.

    Tensors of a group have the same side, kind, messages and initial copies, so a check of one
    tensor holds for all. STATS that ranks compute from initial copies of OUT form their own group.
    """
    nodes = {move.tensors for _, move in plan.moves()} | {node.tensors for node in plan.start}
    by_key = dict[tuple[object, ...], list[str]]()
    for name in dict.fromkeys(INITIAL[plan.pass_] + ACCUMULATORS[plan.pass_]):
        tensor, is_computed = TENSORS[name], name == "STATS" and ("OUT",) in nodes
        messages = frozenset(tensors for tensors in nodes if name in tensors)
        leaves = bool(messages) or is_computed
        key = leaves, tensor.side, tensor.accumulates, messages, is_computed
        by_key.setdefault(key, []).append(name)
    return {tuple(names): bool(leaves) for (leaves, *_), names in by_key.items()}


def input_tables(plan: Plan, dtype: DTypeLike = np.bool_) -> dict[str, Table]:
    """Returns a table for the first of each group of inputs that leave their owners."""
    names = (tensor for (tensor, *_), leaves in group_tensors(plan).items() if leaves)
    return {name: Table(plan, name, dtype) for name in names if name in INPUTS[plan.pass_]}
