"""Places: of which value, and where in it, each rank's copy of each block is.

A value is what arrived at one time under one name: its table [ranks, pieces, heads] of blocks.
The places of a side are one number per rank and block, value x room + slot; -1 for "not here".
"""

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from planner.errors import PlanError
from planner.loops.form import OWN, Ints
from planner.loops.values import Bools, pack
from planner.partitions import Side

ABSENT = np.int32(-(1 << 30))  # the place of no block
FEW = 4  # different slices up to which rows are told apart by them
NARROW = 8  # columns
RUNS = 6  # slices of one rectangle or message


@dataclass
class Value:
    """A name's blocks; `born` is the first step in which it can be read, None: it stays."""

    name: str
    born: int | None
    table: Ints

    def age(self, t: int) -> int:
        """The steps that it has been there for in step t, 0 where it stays."""
        return 0 if self.born is None else t - self.born

    @cached_property
    def pieces(self) -> Ints:
        """How many pieces each rank has: [ranks]."""
        return np.asarray((self.table >= 0).any(axis=2).sum(axis=1))

    @cached_property
    def even(self) -> bool:
        """True if ranks that have anything have as many pieces and heads."""
        counts = [x[x > 0] for x in (self.pieces, self.heads)]
        return all(len(x) == 0 or x.min() == x.max() for x in counts)

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
        self.even = True  # all values are
        self.stays: list[int] = []  # values that stay, but for what ranks own
        self.code = np.full((ranks, len(side) + 1), -1, np.int32)
        self.code[:, -1] = ABSENT  # what block -1 finds

    def add(self, name: str, born: int | None, rank: Ints, block: Ints) -> int:
        """A new value of these blocks.

        Of values that stay, the last one to get a block has it; but a rank owns what it owns.
        """
        if born is None:
            for i in self.stays:
                self._give_up(i, rank, block)
            self.stays += [len(self.values)] * (name != OWN)
        self.values.append(Value(name, born, pack(self.ranks, self.side, rank, block)))
        self.even &= self.values[-1].even
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
            self.even &= self.values[i].even
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
        first = rank.astype(np.intp) * self.code.shape[1]
        code = self.code.reshape(-1).take(first[:, None] + blocks)
        if (code == -1).any():
            raise PlanError("irregular: a block is read whose way to its rank is not understood")
        first, number = self._distinct(rank, code)
        groups = dict[tuple[int, ...], dict[tuple[int, ...], list[int]]]()
        for k, (r, row) in enumerate(zip(rank[first].tolist(), code[first].tolist(), strict=True)):
            values, said = self._row(r, row)
            groups.setdefault(values, {}).setdefault(said, []).append(k)
        results = list[Slices]()
        for values, group in groups.items():
            parts = [({k: said}, many) for said, many in group.items() for k in many[:1]]
            if len(group) > FEW:
                said_of = {k: said for said, many in group.items() for k in many}
                parts = [(said_of, [*said_of])]
            for said_of, many in parts:
                on = np.zeros(len(first), np.bool_)
                on[many] = True
                rows = (
                    np.flatnonzero(on[number]) if len(many) < len(first) else np.arange(len(rank))
                )
                table = np.array([*said_of.values()], np.int32).reshape(len(said_of), -1, 6)
                if len(said_of) > 1:
                    place = np.zeros(len(first), np.intp)
                    place[[*said_of]] = np.arange(len(said_of))
                    table = table[place[number[rows]]]
                n = len(table)
                ends, whole = table[:, :, :4].reshape(n, -1), table[:, :, 4:].reshape(n, -1)
                results.append(Slices(rows, values, ends, whole.astype(np.bool_)))
        return results

    def _distinct(self, rank: Ints, code: Ints) -> tuple[Ints, Ints]:
        """The first of each kind of rows, and which kind each row is of."""
        if self.even and (code == code[0]).all():
            return np.zeros(1, np.intp), np.zeros(len(code), np.intp)
        if not self.even or code.shape[1] > NARROW:
            return np.arange(len(code)), np.arange(len(code))
        _, first, number = np.unique(encoded(code), return_index=True, return_inverse=True)
        return first, number

    def _row(self, rank: int, row: list[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The values that one row reads, one for each run of pieces, and of each six numbers.

        First and last piece, first and last head, and if these are all pieces, all heads.
        """
        slots = dict[int, list[int]]()
        for code in row:
            if code != ABSENT:
                slots.setdefault(code >> self.bits, []).append(code & (self.room - 1))
        values, said = list[int](), list[int]()
        for v, places in sorted(slots.items()):
            value, heads = self.values[v], self.values[v].table.shape[2]
            low, high = min(p % heads for p in places), max(p % heads for p in places)
            pieces = sorted({p // heads for p in places})
            if len(pieces) * (high - low + 1) != len(places):
                raise PlanError(f"irregular: blocks of {value.name} are read that are no slice")
            cuts = [i for i in range(1, len(pieces)) if pieces[i] != pieces[i - 1] + 1]
            for a, b in pairwise((0, *cuts, len(pieces))):
                many = b - a == value.pieces[rank], high - low + 1 == value.heads[rank]
                values.append(v)
                said += [pieces[a], pieces[b - 1], low, high, *many]
        if len(values) > RUNS:
            raise PlanError("irregular: a row reads blocks of too many different values")
        return tuple(values), tuple(said)


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
