"""Places: for each rank's copy of each block, the value and the slot in the value.

A value consists of all blocks that arrived in one step under one name, in a table [ranks, pieces,
heads]. Recovery looks up places; expansion reads values by name. A place is a number, value x slots
+ slot, or -1 if the rank has no copy.
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
MOST_SLICES = 6  # of a rectangle or message

Role = Literal["q", "kv", "send", "into"]


@dataclass(eq=False)
class Value:
    """The blocks of a name, readable from step `born` on; None: always."""

    name: str
    born: int | None
    table: Ints
    counts: Ints = field(init=False)  # pieces and heads of each rank [2, ranks], for `Cut`

    @property
    def heads(self) -> int:
        """The largest number of head slices on a rank."""
        return int((self.table >= 0).any(axis=1).sum(axis=1).max())

    def age(self, t: int) -> int:
        """Returns the age in steps at step t; 0 if always readable."""
        return 0 if self.born is None else t - self.born


class Cut(NamedTuple):
    """The slice of a value that rows read: `ends` are first and last piece, first and last head.

    is_whole: True if the slice has all pieces, and if it has all heads. role: q or kv of a
    rectangle, blocks to send, or the value that sums are added to.
    """

    role: Role
    value: Value
    ends: tuple[int, ...]
    is_whole: tuple[bool, ...]


Read = tuple[Ints, tuple[Cut, ...]]  # rows, and the slices that they read
Request = tuple[Role, "Values", Ints, Ints]  # role, values of a side, rank [n], blocks [n, w]


class Values:
    """The values of one side; with `has_places`, also the place of each block."""

    def __init__(self, ranks: int, side: Side, has_places: bool) -> None:
        self.ranks, self.side, self.has_places = ranks, side, has_places
        self.values: list[Value] = []
        self.named: dict[tuple[str, int | None], Value] = {}  # by name and `born`
        self.bits = max(1, len(side) - 1).bit_length()
        self.slots = 1 << self.bits
        self.place_of = np.full((ranks * has_places, len(side) + 1), -1, np.int32)
        self.place_of[:, -1] = ABSENT  # for block -1

    def add(self, name: str, born: int | None, rank: Ints, blocks: Ints) -> None:
        """Adds a value of blocks [n, w] on ranks [n], and updates the places of the blocks."""
        value = Value(name, born, pack(self.ranks, self.side, rank, blocks))
        self.values.append(value)
        self.named[name, born] = value
        if not self.has_places:
            return
        if len(self.values) * self.slots >= np.iinfo(np.int32).max:
            raise PlanError(f"{len(self.values)} values of {len(self.side)} blocks are too many")
        table = value.table.reshape(self.ranks, -1)
        holder, slot = np.nonzero(table >= 0)
        self.place_of[holder, table[holder, slot]] = (len(self.values) - 1) * self.slots + slot
        counts = [(value.table >= 0).any(axis=x).sum(axis=1) for x in (2, 1)]
        value.counts = np.stack(counts, dtype=np.int32)

    def places(self, rank: Ints, blocks: Ints) -> Ints:
        """Returns the places of blocks [n, w] on ranks [n]: [w, n]; raises PlanError for none."""
        offset = rank.astype(np.intp) * self.place_of.shape[1]
        code = self.place_of.reshape(-1).take(offset + blocks.T)
        if (code == -1).any():
            raise PlanError("a rank reads a block that came by no rule")
        return code

    def numbers(self, rank: Ints, blocks: Ints) -> Ints:
        """Returns the number of the value of each block: [rows, w], or -1."""
        return np.where(blocks < 0, -1, self.places(rank, blocks).T >> self.bits)

    def slices(self, row: list[int]) -> list[tuple[Value, tuple[int, ...]]]:
        """Returns the values that a row reads, with the ends of each run of pieces."""
        slots = defaultdict[int, list[int]](list)
        for code in row:
            if code != ABSENT:
                slots[code >> self.bits].append(code & (self.slots - 1))
        slices = list[tuple[Value, tuple[int, ...]]]()
        for v, places in sorted(slots.items()):
            value, heads = self.values[v], self.values[v].table.shape[2]
            low, high = min(p % heads for p in places), max(p % heads for p in places)
            pieces = sorted({p // heads for p in places})
            if len(pieces) * (high - low + 1) != len(places):
                raise PlanError(f"a rank reads blocks of {value.name} that do not form a slice")
            cuts = [i for i in range(1, len(pieces)) if pieces[i] != pieces[i - 1] + 1]
            for a, b in pairwise((0, *cuts, len(pieces))):
                slices.append((value, (pieces[a], pieces[b - 1], low, high)))
        if len(slices) > MOST_SLICES:
            raise PlanError("a rank attends blocks that came in too many messages")
        return slices


def group_reads(*requests: Request) -> list[Read]:
    """Groups rows that read the same slices of the same values.

    Raises PlanError if a block has no place, or if blocks of a value do not form a few slices.
    """
    codes = [values.places(rank, blocks) for _, values, rank, blocks in requests]
    by_cuts = defaultdict[tuple[Cut, ...], list[Ints]](list)
    for rows in group_equal_columns(np.concatenate(codes)):
        slices = [
            (role, rank, *piece)
            for (role, values, rank, _), code in zip(requests, codes, strict=True)
            for piece in values.slices(code[:, rows[0]].tolist())
        ]
        counts = np.concatenate([value.counts[:, rank[rows]] for _, rank, value, _ in slices])
        spans = [ends[i + 1] - ends[i] + 1 for *_, ends in slices for i in (0, 2)]
        is_whole = counts == np.array(spans)[:, None]
        for part in group_equal_columns(is_whole):
            flags = map(tuple, is_whole[:, part[0]].reshape(-1, 2).tolist())
            pairs = zip(slices, flags, strict=True)
            cuts = tuple(Cut(role, value, ends, flag) for (role, _, value, ends), flag in pairs)
            by_cuts[cuts].append(rows[part])
    return [(np.sort(np.concatenate(rows)), cuts) for cuts, rows in by_cuts.items()]


def group_equal_columns(labels: Ints | Bools) -> list[Ints]:
    """Groups equal columns of [w, n]; returns the indices of each group, ascending."""
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
