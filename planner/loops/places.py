"""Places: of which value, and where in it, each rank's copy of each block is.

A value is what arrived at one time under one name: its table [ranks, pieces, heads] of blocks.
The places of a side are one number per rank and block, value x room + slot; -1 for "not here".
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from planner.errors import PlanError
from planner.loops.form import OWN, Ints
from planner.loops.values import pack
from planner.partitions import Side

Bools = NDArray[np.bool_]
ABSENT = np.int32(-(1 << 30))  # the place of no block
FAR = np.int32(1 << 30)
FEW = 4  # different slices up to which rows are told apart by them
NARROW = 8  # columns
RUNS = 6  # slices of one rectangle or message


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
        self.bits = max(1, len(side) - 1).bit_length()
        self.room = 1 << self.bits
        self.values: list[Value] = []
        self.code = np.full((ranks, len(side)), -1, np.int32)

    def add(self, name: str, born: int | None, rank: Ints, block: Ints) -> int:
        """A new value of these blocks.

        Of values that stay, the last one to get a block has it; but a rank owns what it owns.
        """
        if born is None:
            for i, value in enumerate(self.values):
                if value.born is None and value.name != OWN:
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
        return np.asarray(self.code[rank, block] >> self.bits)

    def drop(self, rank: Ints, block: Ints) -> None:
        """These are no longer there."""
        self.code[rank, block] = -1

    def read(self, rank: Ints, blocks: Ints) -> list[Slices]:
        """Rows (rank [n], blocks [n, w]) by the values that they read.

        Raises PlanError where a block has no place, or blocks of a value are no few slices of it.
        """
        code = self.code[rank[:, None], blocks]
        if absent := bool(blocks.min() < 0):
            code = np.where(blocks >= 0, code, ABSENT)
        if code.min() < 0 and (code == -1).any():
            raise PlanError("irregular: a block is read whose way to its rank is not understood")
        value, slot = code >> self.bits, code & (self.room - 1)
        high = _across(np.maximum, value)
        low = _across(np.minimum, np.where(value < 0, FAR, value) if absent else value)
        results = list[Slices]()
        for rows, values in _groups(value, low, high):
            every = len(rows) == len(rank)
            parts = (rank, value, slot) if every else (rank[rows], value[rows], slot[rows])
            mixed = absent or len(values) > 1
            cuts = [self._cut(*parts, v, parts[1] == v if mixed else None) for v in values]
            if None in cuts:
                results += self._in_runs(rows, values, *parts)
            else:
                results += alike(Slices(rows, values, *_beside(cuts)))
        return results

    def _cut(
        self, rank: Ints, value: Ints, slot: Ints, v: int, on: Bools | None
    ) -> tuple[Ints, Bools] | None:
        """The slices that rows read of a value: ends [n, 4], whole [n, 2]; None if it is none."""
        heads = self.values[v].table.shape[2]
        many = np.full(len(rank), slot.shape[1]) if on is None else _across(np.add, on.astype(int))
        ends, whole = np.zeros((len(rank), 4), np.int32), np.ones((len(rank), 2), np.bool_)
        size = np.ones(len(rank), np.intp)
        axes = [(slot // heads if heads > 1 else slot, self.values[v].pieces)]
        axes += [(slot % heads, self.values[v].heads)] * (heads > 1)
        for k, (x, count) in enumerate(axes):
            low = _across(np.minimum, x if on is None else np.where(on, x, self.room))
            high = _across(np.maximum, x if on is None else np.where(on, x, -1))
            ends[:, 2 * k], ends[:, 2 * k + 1] = low, high
            whole[:, k] = (low == 0) & (high == count[rank] - 1)
            size *= high - low + 1
        return None if (many != size).any() else (ends, whole)

    def _in_runs(
        self, rows: Ints, values: tuple[int, ...], rank: Ints, value: Ints, slot: Ints
    ) -> list[Slices]:
        """Rows that read several runs of a value's pieces: a slice per run."""
        number = np.zeros(slot.shape, np.intp)  # of the run that a block is in, from 1
        counts = np.zeros((len(rows), len(values)), np.intp)
        for k, v in enumerate(values):
            row, column = np.nonzero(value == v)
            piece = slot[row, column] // self.values[v].table.shape[2]
            present = np.zeros((len(rows), self.values[v].table.shape[1] + 1), np.bool_)
            present[row, piece + 1] = True
            run = np.cumsum(present[:, 1:] & ~present[:, :-1], axis=1)
            number[row, column], counts[:, k] = run[row, piece], run[:, -1]
        results = list[Slices]()
        for key in dict.fromkeys(map(tuple, counts.tolist())):
            at = np.flatnonzero((counts == key).all(axis=1))
            parts = rank[at], value[at], slot[at]
            which = [(v, i + 1) for v, many in zip(values, key, strict=True) for i in range(many)]
            cuts = [self._cut(*parts, v, (parts[1] == v) & (number[at] == i)) for v, i in which]
            if None in cuts or len(cuts) > RUNS:
                names = " ".join(dict.fromkeys(self.values[v].name for v in values))
                raise PlanError(f"irregular: blocks of {names} are read that are no slices")
            results += alike(Slices(rows[at], tuple(v for v, _ in which), *_beside(cuts)))
        return results


def _beside(cuts: list[tuple[Ints, Bools] | None]) -> tuple[Ints, Bools]:
    ends, whole = zip(*(c for c in cuts if c), strict=True)
    return np.hstack(ends), np.hstack(whole)


def _across(how: np.ufunc, table: Ints) -> Ints:
    """A table [n, w] column by column to [n]; quick where it is narrow."""
    if table.shape[1] > NARROW:
        return np.asarray(how.reduce(table, axis=1))
    result = table[:, 0]
    for column in table.T[1:]:
        result = how(result, column)
    return result


def _groups(value: Ints, low: Ints, high: Ints) -> list[tuple[Ints, tuple[int, ...]]]:
    """Rows by the values in them, these ascending."""
    single = low == high
    if single.all() and (high == high[0]).all():
        return [(np.arange(len(high)), (int(high[0]),))]
    groups = list[tuple[Ints, tuple[int, ...]]]()
    for v in np.unique(high[single]).tolist():
        groups.append((np.flatnonzero(single & (high == v)), (v,)))
    mixed = dict[tuple[int, ...], list[int]]()
    for i in np.flatnonzero(~single).tolist():
        mixed.setdefault(tuple(np.unique(value[i][value[i] >= 0]).tolist()), []).append(i)
    return groups + [(np.array(rows), values) for values, rows in mixed.items()]


def alike(slices: Slices) -> list[Slices]:
    """Rows split by their slices, where these are few; else as they are."""
    labels = slices.ends.copy()
    labels[:, 1::2][slices.whole] = -1
    number = encoded(labels)
    kinds, first = np.unique(number, return_index=True)
    if len(kinds) > FEW:
        return [slices]
    return [
        Slices(
            slices.rows if len(kinds) == 1 else slices.rows[number == k],
            slices.values,
            slices.ends[[i]],
            slices.whole[[i]],
        )
        for k, i in zip(kinds, first, strict=True)
    ]


def encoded(labels: Ints) -> Ints:
    """One number for each different row of [n, w]; rows are equal where their numbers are."""
    code = np.zeros(len(labels), np.int64)
    for column in labels.T:
        if (column == column[0]).all():
            continue
        column = column - column.min()
        if code.max(initial=0) > 1 << 40:
            code = np.unique(code, return_inverse=True)[1].astype(np.int64)
        code = code * (int(column.max()) + 1) + column
    return code
