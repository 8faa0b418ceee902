"""recovered_by_piece(plan)   loops in which pieces that travel apart have names of their own.

    A <- send KV A[0] ...                    A <- send KV A ...         own[0] as it goes around
    attend own x A + B, other          -->   attend own x A, other      for each value
    B <- send DKV sum for A@t-1[0] ...       B <- send DKV sum for A@t-1 ...

A label is which piece of its owner, or of what an exchange brought, a block is. Labels that no
message tells apart are a group, and travel as one value; so every value has equally many pieces
on all ranks, and each rectangle is of one value of queries and one of keys.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from planner.analysis.tiles import alive
from planner.cached import cached_on_plan
from planner.errors import PlanError
from planner.ir import Attend, Move, Plan, Step
from planner.loops.check import check
from planner.loops.expand import SIDES, Expansion
from planner.loops.form import OWN, Ints
from planner.loops.places import Value
from planner.loops.recovery import loops_of, recovered
from planner.loops.transfers import Way
from planner.loops.walk import Reading

MOST = 64  # statements
Labels = dict[str, Ints]  # of each block, by side


@cached_on_plan
def recovered_by_piece(plan: Plan) -> Expansion:
    """The loops of a plan, expanded: those of `recovered` where all pieces travel together.

    The plan of the expansion has the rectangles of each value apart. Raises PlanError as
    `recovered` does.
    """
    whole = Reading(plan)
    groups = {side: _groups(whole, side) for side in SIDES}
    reading = _Apart(plan, groups)
    if reading.split == plan.steps:
        return recovered(plan)
    apart = replace(plan, steps=reading.split)
    for loops in loops_of(apart, reading, cut=True):
        if len(loops.statements) <= MOST:
            try:
                return check(loops, apart)
            except PlanError:
                continue
    return recovered(plan)


def _labels(reading: Reading, side: str) -> Ints:
    """Which piece each block is, of the values that messages take it from first."""
    tables = reading.tables
    sent = [
        cut.value.name
        for record in reading.records
        for cut in record.cuts
        if cut.role == "send"
        and (side, cut.value.name) in tables
        and cut.value.born is None
        and reading.values[side].named.get((cut.value.name, None)) is cut.value
    ]
    labels = np.full(len(reading.plan.partition.side(side)), -1)
    for name in dict.fromkeys((*sent, OWN)):
        rank, piece, head = np.nonzero(tables[side, name] >= 0)
        blocks = tables[side, name][rank, piece, head]
        labels[blocks] = np.where(labels[blocks] < 0, piece, labels[blocks])
    return labels


def _groups(reading: Reading, side: str) -> Ints:
    """The group of each block: labels that every message takes all, or none of."""
    labels = _labels(reading, side)
    groups = [frozenset(range(int(labels.max(initial=0)) + 1))]
    for taken in _taken(reading, side, labels):
        parts = [part for group in groups for part in (group & taken, group - taken)]
        groups = [part for part in parts if part]
    number = np.zeros(int(labels.max(initial=0)) + 1, np.intp)
    for n, group in enumerate(groups):
        number[list(group)] = n
    return np.asarray(number[labels])


def _taken(reading: Reading, side: str, labels: Ints) -> Iterator[frozenset[int]]:
    """The labels in each message."""
    for record in reading.records:
        for cut in record.cuts if record.way is not None else ():
            if cut.role != "send" or cut.value not in reading.values[side].values:
                continue
            low, high, *_ = cut.ends
            blocks = cut.value.table[record.rank, low : high + 1].reshape(len(record.rank), -1)
            for row in np.unique(np.where(blocks < 0, -1, labels[blocks]), axis=0):
                yield frozenset(row[row >= 0].tolist())


class _Apart(Reading):
    """The records of a plan whose messages are cut by group, and rectangles by value."""

    def __init__(self, plan: Plan, groups: Labels) -> None:
        self.groups, self.parts = groups, list[list[Attend]]()
        super().__init__(plan)
        steps = zip(plan.steps, self.parts, strict=True)
        self.split = tuple(replace(step, attends=tuple(parts)) for step, parts in steps)

    def _step(self, t: int, step: Step) -> None:
        self.parts.append([])
        super()._step(t, step)

    def _attend_step(self, t: int, attend: Attend) -> None:
        for q, kv, part in self._by_value(attend):
            self._meet(t, q, kv, part)

    def _ways(self, t: int, move: Move) -> Iterator[tuple[Way, Move]]:
        for way, part in super()._ways(t, move):
            group = np.where(part.blocks < 0, -1, self.groups[part.side][part.blocks])
            for n in np.unique(group[group >= 0]).tolist():
                blocks = np.where(group == n, part.blocks, -1)
                yield way, Move(part.tensors, blocks, part.src, part.dst)

    def _named(self, t: int, way: Way, move: Move, names: set[str]) -> str:
        group = int(self.groups[move.side][move.blocks.max()])
        return self.transfers.name(t, (*move.tensors, str(group)), way, names)

    def _meet(self, t: int, q: Value, kv: Value, attend: Attend) -> None:
        """Notes the records of two values; their rectangles as one where that is all there is."""
        whole = None if _has_slices(q) or _has_slices(kv) else self._whole(q, kv)
        rows = whole.only(np.isin(whole.rank, attend.rank)) if whole else attend
        complete = whole is not None and np.array_equal(self._pairs(rows), self._pairs(attend))
        here = [(value.table >= 0).any(axis=(1, 2)) for value in (q, kv)]
        idle = np.setdiff1d(np.flatnonzero(here[0] & here[1]), whole.rank) if whole else None
        self.parts[t].append(rows if complete else attend)
        first = len(self.records)
        self._attends(t, self.parts[t][-1])
        self.records[first:] = [
            replace(record, complete=complete, idle=idle) for record in self.records[first:]
        ]

    def _whole(self, q: Value, kv: Value) -> Attend:
        """The rectangles of all that ranks have of two values."""
        tables = (value.table.reshape(self.ranks, -1) for value in (q, kv))
        return alive(self.kinds.tiles, Attend(self.everyone, *tables))

    def _pairs(self, attend: Attend) -> Ints:
        """One number for each rank and pair of blocks that a mask leaves, ascending."""
        q, kv = attend.q[:, :, None], attend.kv[:, None, :]
        live = self.kinds.tiles.live(q, kv)
        sides = len(self.plan.partition.q), len(self.plan.partition.kv)
        codes = (attend.rank.astype(np.int64)[:, None, None] * sides[0] + q) * sides[1] + kv
        return np.unique(codes[live])

    def _by_value(self, attend: Attend) -> Iterator[tuple[Value, Value, Attend]]:
        """The rectangles of each value of queries and each of keys, without what is dead."""
        q_of, kv_of = self._values("q", attend), self._values("kv", attend)
        for q in np.unique(q_of[q_of >= 0]).tolist():
            for kv in np.unique(kv_of[kv_of >= 0]).tolist():
                left = np.where(q_of == q, attend.q, -1)
                right = np.where(kv_of == kv, attend.kv, -1)
                part = alive(self.kinds.tiles, Attend(attend.rank, left, right))
                if len(part):
                    yield self.values["q"].values[q], self.values["kv"].values[kv], part

    def _values(self, side: str, attend: Attend) -> Ints:
        """The number of the value that each block is read from: [rows, w], -1 for none."""
        values, blocks = self.values[side], attend.q if side == "q" else attend.kv
        places = values.places(attend.rank, blocks).T
        return np.where(blocks < 0, -1, places >> values.bits)


def _has_slices(value: Value) -> bool:
    """True if a rank has several slices of heads of a value, which are attended one by one."""
    return bool(((value.table >= 0).any(axis=1).sum(axis=1) > 1).any())
