"""Places: of which value, and where in it, each rank's copy of each block is.

A value is what arrived at one time under one name: its table [ranks, pieces, heads] of blocks.
Recovery asks for places; expansion reads values by name.
The places of a side are one number per rank and block, value x room + slot; -1 for "not here".
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
RUNS = 6  # slices of one rectangle or message

Role = Literal["q", "kv", "send", "into"]


@dataclass(eq=False)
class Value:
    """A name's blocks; `born` is the first step in which it can be read, None: it stays."""

    name: str
    born: int | None
    table: Ints
    counts: Ints = field(
        init=False
    )  # pieces and heads of each rank [2, ranks], if places are asked

    @property
    def heads(self) -> int:
        """The most slices of heads that a rank has of it."""
        return int((self.table >= 0).any(axis=1).sum(axis=1).max())

    def age(self, t: int) -> int:
        """The steps that it has been there for in step t, 0 where it stays."""
        return 0 if self.born is None else t - self.born


class Cut(NamedTuple):
    """The slice of a value that rows read: `ends` are first and last piece, first and last head.

    `whole` says of pieces and of heads that these are all. `role` is what it is read for: as q or
    kv of a rectangle, to be sent, or as what sums are added into.
    """

    role: Role
    value: Value
    ends: tuple[int, ...]
    whole: tuple[bool, ...]


Read = tuple[Ints, tuple[Cut, ...]]  # rows, and what they read
Asked = tuple[Role, "Values", Ints, Ints]  # role, values of a side, rank [n], blocks [n, w]


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
        """A new value of these blocks [n, w] on these ranks [n]; the last one has a block."""
        value = Value(name, born, pack(self.ranks, self.side, rank, blocks))
        self.values.append(value)
        self.named[name, born] = value
        if not self.placed:
            return
        if len(self.values) * self.room >= np.iinfo(np.int32).max:
            raise PlanError(f"{len(self.values)} values of {len(self.side)} blocks")
        table = value.table.reshape(self.ranks, -1)
        holder, slot = np.nonzero(table >= 0)
        self.code[holder, table[holder, slot]] = (len(self.values) - 1) * self.room + slot
        counts = [(value.table >= 0).any(axis=x).sum(axis=1) for x in (2, 1)]
        value.counts = np.stack(counts, dtype=np.int32)

    def places(self, rank: Ints, blocks: Ints) -> Ints:
        """Where rows (rank [n], blocks [n, w]) have their blocks: [w, n]; PlanError for nowhere."""
        at = rank.astype(np.intp) * self.code.shape[1]
        code = self.code.reshape(-1).take(at + blocks.T)
        if (code == -1).any():
            raise PlanError("how a block comes to a rank that reads it has no rule")
        return code

    def numbers(self, rank: Ints, blocks: Ints) -> Ints:
        """The number of the value that each block is read from: [rows, w], -1 for none."""
        return np.where(blocks < 0, -1, self.places(rank, blocks).T >> self.bits)

    def slices(self, row: list[int]) -> list[tuple[Value, tuple[int, ...]]]:
        """The values that one row reads, one for each run of pieces, and its ends there."""
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
    """Groups of rows that read the same slices of the same values, each with these slices.

    Raises PlanError where a block has no place, or blocks of a value are no few slices of it.
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
    """The columns of [w, n] that are equal, ascending, for each different one."""
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
