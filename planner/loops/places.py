"""Places: of which value, and where in it, each rank's copy of each block is.

A value is what arrived at one time under one name: its table [ranks, pieces, heads] of blocks.
The places of a side are one number per rank and block, value x room + slot; -1 for "not here".
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from planner.errors import PlanError
from planner.loops.form import Ints
from planner.loops.values import pack
from planner.partitions import Side

Bools = NDArray[np.bool_]


@dataclass
class Value:
    """A name's blocks; `born` is the first step in which it can be read, None: it stays."""

    name: str
    born: int | None
    table: Ints

    @cached_property
    def pieces(self) -> Ints:
        """How many pieces each rank has: [ranks]."""
        return np.asarray((self.table >= 0).any(axis=2).sum(axis=1))

    @cached_property
    def heads(self) -> Ints:
        """How many head slices each rank has: [ranks]."""
        return np.asarray((self.table >= 0).any(axis=1).sum(axis=1))


@dataclass(frozen=True, slots=True)
class Slices:
    """Rows that read the same values: which rows, and per value the slices read of it.

    `ends` [n, 4 x values] are first and last piece, first and last head; `whole` [n, 2 x values]
    says that these are all. Where all rows are alike, ends and whole have one row.
    """

    rows: Ints
    values: tuple[int, ...]
    ends: Ints
    whole: Bools


class Places:
    """The values of one side, or of one tensor of sums, and where each block is."""

    def __init__(self, ranks: int, side: Side) -> None:
        self.ranks, self.side = ranks, side
        self.room = 1 << max(1, len(side) - 1).bit_length()
        self.values: list[Value] = []
        self.code = np.full((ranks, len(side)), -1, np.int32)

    def add(self, name: str, born: int | None, rank: Ints, block: Ints) -> int:
        """A new value of these blocks; of values that stay, the last one to get a block has it."""
        if born is None:
            for i, value in enumerate(self.values):
                if value.born is None:
                    self._give_up(i, rank, block)
        self.values.append(Value(name, born, pack(self.ranks, self.side, rank, block)))
        self._put(len(self.values) - 1)
        return len(self.values) - 1

    def _put(self, i: int) -> None:
        table = self.values[i].table
        rank, slot = np.nonzero(table.reshape(self.ranks, -1) >= 0)
        if (i + 1) * self.room >= np.iinfo(np.int32).max:
            raise PlanError(f"more than {i} values of {len(self.side)} blocks")
        self.code[rank, table.reshape(self.ranks, -1)[rank, slot]] = i * self.room + slot

    def _give_up(self, i: int, rank: Ints, block: Ints) -> None:
        """A value that stays loses blocks that another one takes over."""
        table = self.values[i].table.reshape(self.ranks, -1)
        taken = np.zeros(self.code.shape, np.bool_)
        taken[rank, block] = True
        r, c = np.nonzero(table >= 0)
        lost = taken[r, table[r, c]]
        if lost.any():
            left = r[~lost], table[r, c][~lost]
            old = self.values[i]
            self.values[i] = Value(old.name, None, pack(self.ranks, self.side, *left))
            self._put(i)

    def of(self, rank: Ints, block: Ints) -> Ints:
        """The value of each (rank, block), any shapes that go together; -1 for none."""
        return np.asarray(self.code[rank, block] // self.room)  # -1 // room is -1

    def drop(self, rank: Ints, block: Ints) -> None:
        """These are no longer there."""
        self.code[rank, block] = -1

    def read(self, rank: Ints, blocks: Ints) -> list[Slices]:
        """Rows (rank [n], blocks [n, w]) by the values that they read.

        Raises PlanError where a block has no place, or blocks of a value are no slice of it.
        """
        there = blocks >= 0
        code = np.where(there, self.code[rank[:, None], blocks], -1)
        value, slot = code // self.room, code % self.room
        if (value[there] < 0).any():
            raise PlanError("a block is read whose way to its rank is not understood")
        low, high = np.where(there, value, np.iinfo(np.int32).max).min(axis=1), value.max(axis=1)
        groups = list[tuple[Ints, tuple[int, ...]]]()
        for v in np.unique(high[low == high]).tolist():
            groups.append((np.flatnonzero((low == high) & (high == v)), (v,)))
        mixed = dict[tuple[int, ...], list[int]]()
        for i in np.flatnonzero(low != high).tolist():
            mixed.setdefault(tuple(np.unique(value[i][there[i]]).tolist()), []).append(i)
        groups += [(np.array(rows), values) for values, rows in mixed.items()]
        results = list[Slices]()
        for rows, values in groups:
            cuts = [self._cut(rank[rows], v, value[rows], slot[rows]) for v in values]
            ends, whole = (np.hstack(x) for x in zip(*cuts, strict=True))
            results += alike(Slices(rows, values, ends, whole))
        return results

    def _cut(self, rank: Ints, v: int, value: Ints, slot: Ints) -> tuple[Ints, Bools]:
        """The slices that rows read of a value: ends [n, 4], whole [n, 2]."""
        on, heads = value == v, self.values[v].table.shape[2]
        ends, whole, many = list[Ints](), list[Bools](), np.ones(len(rank), np.intp)
        counts = self.values[v].pieces, self.values[v].heads
        for x, count in ((slot // heads, counts[0]), (slot % heads, counts[1])):
            low = np.where(on, x, self.room).min(axis=1)
            high = np.where(on, x, -1).max(axis=1)
            ends += [low, high]
            whole.append((low == 0) & (high == count[rank] - 1))
            many = many * (high - low + 1)
        if (on.sum(axis=1) != many).any():
            raise PlanError(f"blocks of {self.values[v].name} are read that are no slice of it")
        return np.stack(ends, axis=1).astype(np.int32), np.stack(whole, axis=1)


FEW = 4  # different slices up to which rows are told apart by them


def alike(slices: Slices) -> list[Slices]:
    """Rows split by their slices, where these are few; else as they are."""
    labels = slices.ends.copy()
    labels[:, 1::2][slices.whole] = -1
    number = encoded(labels)
    kinds, first = np.unique(number, return_index=True)
    if len(kinds) > FEW:
        return [slices]
    return [
        Slices(slices.rows[number == k], slices.values, slices.ends[[i]], slices.whole[[i]])
        for k, i in zip(kinds, first, strict=True)
    ]


def encoded(labels: Ints) -> Ints:
    """One number for each different row of [n, w]; rows are equal where their numbers are."""
    code = np.zeros(len(labels), np.int64)
    for column in (labels - labels.min(axis=0)).T:
        if code.max(initial=0) > 1 << 40:
            code = np.unique(code, return_inverse=True)[1].astype(np.int64)
        code = code * (int(column.max()) + 1) + column
    return code
