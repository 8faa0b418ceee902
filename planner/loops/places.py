"""Places: the value, and the slot in it, of each rank's copy of each block.

A value is everything that arrived in one step under one name: a table [ranks, pieces, heads] of
blocks. Recovery looks up places; expansion reads values by name. The places of a side are one
number per rank and block, value x room + slot; -1 if the rank has no copy.
"""

from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal, NamedTuple

import numpy as np

from ringloom.planner.errors import PlanError
from ringloom.planner.loops.form import Ints
from ringloom.planner.loops.values import Bools, pack
from ringloom.planner.partitions import Side

ABSENT = np.int32(-(1 << 30))  # the place of no block
RUNS = 6  # most slices of one rectangle or message

Role = Literal["q", "kv", "send", "into"]


@dataclass(eq=False)
class Value:
    """The blocks of a name; `born`: the first step in which it is readable, None if permanent."""

    name: str
    born: int | None
    table: Ints
    counts: Ints = field(
        init=False
    )  # pieces and heads of each rank [2, ranks], if places are asked

    @property
    def heads(self) -> int:
        """The largest number of head slices on a rank."""
        return int((self.table >= 0).any(axis=1).sum(axis=1).max())

    def age(self, t: int) -> int:
        """Returns its age in steps at step t; 0 if it is permanent."""
        return 0 if self.born is None else t - self.born


class Cut(NamedTuple):
    """The slice of a value that rows read: `ends` are first and last piece, first and last head.

    `whole`: whether it has all pieces, and all heads. `role`: read as q or kv of a rectangle, to be
    sent, or as the value that sums are added into.
    """

    role: Role
    value: Value
    ends: tuple[int, ...]
    whole: tuple[bool, ...]


Read = tuple[Ints, tuple[Cut, ...]]  # rows, and what they read
Asked = tuple[Role, "Values", Ints, Ints]  # role, values of a side, rank [n], blocks [n, w]


class Values:
    """The values of one side; if `placed`, also the place of each block."""

    def __init__(self, ranks: int, side: Side, placed: bool) -> None:
        self.ranks, self.side, self.placed = ranks, side, placed
        self.values: list[Value] = []
        self.named: dict[tuple[str, int | None], Value] = {}  # by name and the step of its birth
        self.bits = max(1, len(side) - 1).bit_length()
        self.room = 1 << self.bits
        self.code = np.full((ranks * placed, len(side) + 1), -1, np.int32)
        self.code[:, -1] = ABSENT  # what block -1 finds

    def add(self, name: str, born: int | None, rank: Ints, blocks: Ints) -> None:
        """Adds a value of blocks [n, w] on ranks [n]; it takes over the places of its blocks."""
        value = Value(name, born, pack(self.ranks, self.side, rank, blocks))
        self.values.append(value)
        self.named[name, born] = value
        if not self.placed:
            return
        if len(self.values) * self.room >= np.iinfo(np.int32).max:
            raise PlanError(f"{len(self.values)} values of {len(self.side)} blocks are too many")
        table = value.table.reshape(self.ranks, -1)
        holder, slot = np.nonzero(table >= 0)
        self.code[holder, table[holder, slot]] = (len(self.values) - 1) * self.room + slot
        counts = [(value.table >= 0).any(axis=x).sum(axis=1) for x in (2, 1)]
        value.counts = np.stack(counts, dtype=np.int32)

    def places(self, rank: Ints, blocks: Ints) -> Ints:
        """Returns the places of blocks [n, w] on ranks [n]: [w, n]; PlanError if one is absent."""
        at = rank.astype(np.intp) * self.code.shape[1]
        code = self.code.reshape(-1).take(at + blocks.T)
        if (code == -1).any():
            raise PlanError("how a block comes to a rank that reads it has no rule")
        return code

    def numbers(self, rank: Ints, blocks: Ints) -> Ints:
        """Returns the number of the value that each block is read from: [rows, w], or -1."""
        return np.where(blocks < 0, -1, self.places(rank, blocks).T >> self.bits)

    def slices(self, row: list[int]) -> list[tuple[Value, tuple[int, ...]]]:
        """Returns the values that one row reads, with the ends of each run of pieces."""
        slots = defaultdict[int, list[int]](list)
        for code in row:
            if code != ABSENT:
                slots[code >> self.bits].append(code & (self.room - 1))
        slices = list[tuple[Value, tuple[int, ...]]]()
        for v, places in sorted(slots.items()):
            value, heads = self.values[v], self.values[v].table.shape[2]
            low, high = min(p % heads for p in places), max(p % heads for p in places)
            pieces = sorted({p // heads for p in places})
            if len(pieces) * (high - low + 1) != len(places):
                raise PlanError(f"blocks of {value.name} that are read are no slice")
            cuts = [i for i in range(1, len(pieces)) if pieces[i] != pieces[i - 1] + 1]
            for a, b in pairwise((0, *cuts, len(pieces))):
                slices.append((value, (pieces[a], pieces[b - 1], low, high)))
        if len(slices) > RUNS:
            raise PlanError("a rank attends blocks that came in too many messages")
        return slices


def read(*asked: Asked) -> list[Read]:
    """Groups rows that read the same slices of the same values.

    Raises PlanError if a block has no place, or if blocks of a value do not form a few slices.
    """
    codes = [values.places(rank, blocks) for _, values, rank, blocks in asked]
    alike = defaultdict[tuple[Cut, ...], list[Ints]](list)
    for rows in equal(np.concatenate(codes)):
        slices = [
            (role, rank, *one)
            for (role, values, rank, _), code in zip(asked, codes, strict=True)
            for one in values.slices(code[:, rows[0]].tolist())
        ]
        counts = np.concatenate([value.counts[:, rank[rows]] for _, rank, value, _ in slices])
        spans = [ends[i + 1] - ends[i] + 1 for *_, ends in slices for i in (0, 2)]
        whole = counts == np.array(spans)[:, None]
        for part in equal(whole):
            flags = map(tuple, whole[:, part[0]].reshape(-1, 2).tolist())
            each = zip(slices, flags, strict=True)
            cuts = tuple(Cut(role, value, ends, all_) for (role, _, value, ends), all_ in each)
            alike[cuts].append(rows[part])
    return [(np.sort(np.concatenate(rows)), cuts) for cuts, rows in alike.items()]


def equal(labels: Ints | Bools) -> list[Ints]:
    """Groups equal columns of [w, n]; returns their indices, ascending, for each group."""
    code = np.zeros(labels.shape[1], np.int64)
    for row in labels:
        if (row != row[0]).any():
            row = row.astype(np.int64) - int(row.min())
            if code.max(initial=0) > 1 << 30:
                code = np.unique(code, return_inverse=True)[1].astype(np.int64)
            code = code * (int(row.max()) + 1) + row
    if not code.any():
        return [np.arange(len(code))]
    order = np.argsort(code, kind="stable")
    code = code[order]
    return np.split(order, np.flatnonzero(code[1:] != code[:-1]) + 1)
