"""Places: of which value, and where in it, each rank's copy of each block is.

A value is what arrived at one time under one name: its table [ranks, pieces, heads] of blocks.
Recovery asks for places; expansion reads values by name.
The places of a side are one number per rank and block, value x room + slot; -1 for "not here".
"""

from collections import Counter, defaultdict
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from planner.errors import PlanError
from planner.loops.form import OWN, Ints
from planner.loops.values import Bools, pack, without
from planner.partitions import Side

ABSENT = np.int32(-(1 << 30))  # the place of no block
FEW = 4  # different slices up to which rows are told apart by them
RUNS = 6  # slices of one rectangle or message

Slices = tuple[tuple[int, ...], tuple[int, ...]]  # values by number, four numbers for each


class Value:
    """A name's blocks; `born` is the first step in which it can be read, None: it stays."""

    counts: Ints  # pieces and heads of each rank [ranks, 2], where places are asked

    def __init__(self, name: str, born: int | None, table: Ints) -> None:
        self.name, self.born, self.table = name, born, table

    def age(self, t: int) -> int:
        """The steps that it has been there for in step t, 0 where it stays."""
        return 0 if self.born is None else t - self.born


@dataclass(frozen=True, slots=True)
class Cut:
    """A value and the slices that rows read of it.

    `ends` [n, 4] are first and last piece, first and last head; `whole` [n, 2] says that these are
    all. Where all rows are alike, ends and whole have one row.
    """

    value: Value
    ends: Ints
    whole: Bools

    def take(self, rows: Ints) -> "Cut":
        """The same for some of the rows."""
        if len(self.ends) == 1:
            return self
        return Cut(self.value, self.ends.take(rows, axis=0), self.whole.take(rows, axis=0))


class Values:
    """The values of one side; if `placed`, also where each block is."""

    def __init__(self, ranks: int, side: Side, placed: bool) -> None:
        self.ranks, self.side, self.placed = ranks, side, placed
        self.values: list[Value] = []
        self.named: dict[tuple[str, int | None], Value] = {}  # by name and the step of its birth
        self.bits = max(1, len(side) - 1).bit_length()
        self.room = 1 << self.bits
        self.code = np.full((ranks * placed, len(side) + 1), -1, np.int32)
        self.code[:, -1] = ABSENT  # what block -1 finds

    def add(self, name: str, born: int | None, rank: Ints, blocks: Ints) -> None:
        """A new value of these blocks [n, w] on these ranks [n].

        Of values that stay, the last one to get a block has it; but a rank owns what it owns.
        """
        others = [v for (name, born), v in self.named.items() if born is None and name != OWN]
        for value in others if born is None else ():
            value.table = without(value.table, self.side, rank, blocks)
            self._put(value)
        value = Value(name, born, pack(self.ranks, self.side, rank, blocks))
        self.values.append(value)
        self.named[name, born] = value
        self._put(value)

    def _put(self, value: Value) -> None:
        """Note the places of a value's blocks, if anybody asks."""
        if not self.placed:
            return
        i = self.values.index(value)
        if (i + 1) * self.room >= np.iinfo(np.int32).max:
            raise PlanError(f"more than {i} values of {len(self.side)} blocks")
        table = value.table.reshape(self.ranks, -1)
        rank, slot = np.nonzero(table >= 0)
        self.code[rank, table[rank, slot]] = i * self.room + slot
        counts = [(value.table >= 0).any(axis=x).sum(axis=1) for x in (2, 1)]
        value.counts = np.stack(counts, axis=1)

    def read(self, rank: Ints, blocks: Ints) -> list[tuple[Ints, tuple[Cut, ...]]]:
        """Rows (rank [n], blocks [n, w]) that read the same values, and what they read of these.

        Raises PlanError where a block has no place, or blocks of a value are no few slices of it.
        """
        at = rank.astype(np.intp) * self.code.shape[1]
        code = self.code.reshape(-1).take(at[:, None] + blocks)
        if (code == -1).any():
            raise PlanError("irregular: a block is read whose way to its rank is not understood")
        first, number = np.zeros(1, np.intp), np.zeros(len(code), np.intp)
        if (code != code[0]).any():
            _, first, number = np.unique(encoded(code), return_index=True, return_inverse=True)
        slices = [self._slices(row) for row in code[first].tolist()]
        different = Counter(values for values, _ in set(slices))
        groups = defaultdict[Slices | tuple[int, ...], list[int]](list)
        for k, one in enumerate(slices):
            groups[one if different[one[0]] <= FEW else one[0]].append(k)
        group = np.zeros(len(slices), np.intp)
        for g, kinds in enumerate(groups.values()):
            group[kinds] = g
        rows = [np.flatnonzero(group[number] == g) for g in range(len(groups))]
        made = list[tuple[Ints, tuple[Cut, ...]]]()
        for at, kinds in zip(rows, groups.values(), strict=True):
            ends = np.array([slices[k][1] for k in kinds], np.int32)
            if len(kinds) > 1:
                ends = ends[np.searchsorted(kinds, number[at])]
            values = enumerate(slices[kinds[0]][0])
            cuts = [self._cut(self.values[v], ends[:, 4 * i :][:, :4], rank[at]) for i, v in values]
            made.append((at, tuple(cuts)))
        return made

    def _cut(self, value: Value, ends: Ints, rank: Ints) -> Cut:
        """The slices of a value that some ranks read, said once where they are alike."""
        whole = ends[:, 1::2] - ends[:, ::2] + 1 == value.counts[rank]
        if (ends == ends[0]).all() and (whole == whole[0]).all():
            return Cut(value, ends[:1].copy(), whole[:1].copy())
        return Cut(value, np.broadcast_to(ends, (len(rank), 4)), whole)

    def _slices(self, row: list[int]) -> Slices:
        """The values that one row reads, one for each run of pieces, and of each four numbers.

        First and last piece, first and last head.
        """
        slots = defaultdict[int, list[int]](list)
        for code in row:
            if code != ABSENT:
                slots[code >> self.bits].append(code & (self.room - 1))
        values, said = list[int](), list[int]()
        for v, places in sorted(slots.items()):
            value, heads = self.values[v], self.values[v].table.shape[2]
            low, high = min(p % heads for p in places), max(p % heads for p in places)
            pieces = sorted({p // heads for p in places})
            if len(pieces) * (high - low + 1) != len(places):
                raise PlanError(f"irregular: blocks of {value.name} are read that are no slice")
            cuts = [i for i in range(1, len(pieces)) if pieces[i] != pieces[i - 1] + 1]
            for a, b in pairwise((0, *cuts, len(pieces))):
                values.append(v)
                said += [pieces[a], pieces[b - 1], low, high]
        if len(values) > RUNS:
            raise PlanError("irregular: a row reads blocks of too many different values")
        return tuple(values), tuple(said)


def encoded(labels: Ints) -> Ints:
    """One number for each different row of [n, w]; rows are equal where their numbers are."""
    code = np.zeros(len(labels), np.int64)
    for column in labels.T:
        if (column == column[0]).all():
            continue
        column = column.astype(np.int64) - column.min()
        if code.max(initial=0) > 1 << 30:
            code = np.unique(code, return_inverse=True)[1].astype(np.int64)
        code = code * (int(column.max()) + 1) + column
    return code
