"""walk(plan, loops)   runs a loop form once over the blocks: where sums are added and sent from.

It finds the cell that each attend adds to and that each message is added to, and raises PlanError
where sums would be left behind or meet others.
"""

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codegen.lowered.rows import Handing, Rows, cut, source
from codegen.lowered.sums import Cell, Rectangles, Walk, plain
from planner.columns import flat
from planner.errors import PlanError
from planner.ir import ACCUMULATORS, TENSORS, Plan
from planner.loops.form import OWN, Attend, Ends, Guard, Ints, Loops, Return, Send, Statement
from planner.loops.values import same

SIDES = ("q", "kv")


def walk(plan: Plan, loops: Loops, at_owner: bool = False) -> tuple[Loops, Walk]:
    """Follow the sums of a pass through its steps; in the loops, each attend adds to one cell.

    `at_owner`: sums for what ranks own stay with them, whatever the plan does.
    """
    walked = _Walker(plan, loops, at_owner).run()
    statements = tuple(x for s in loops.statements for x in _spans(s, walked))
    return replace(loops, statements=statements), walked


def _spans(s: Statement, walked: Walk) -> Iterator[Statement]:
    """A statement; if it is an attend, one for the steps of each cell that it adds to."""
    targets = walked.targets.get(s, {})
    runs = [[*run] for _, run in groupby(targets, key=targets.__getitem__)]
    if len(runs) < 2 or s.when.every > 1:
        yield s
        return
    del walked.targets[s]
    attended = walked.attended.pop(s)
    for span in runs:
        part = replace(s, when=replace(s.when, first=span[0], last=span[-1]))
        walked.targets[part] = {t: targets[t] for t in span}
        walked.attended[part] = {t: attended[t] for t in span}
        yield part


class _Walker:
    def __init__(self, plan: Plan, loops: Loops, at_owner: bool) -> None:
        self.plan, self.loops, self.ranks = plan, loops, plan.ranks
        self.rows = rows = Rows(plan, loops)
        self.result = Walk(rows.pieces, rows.tables, rows.aged)
        self.sums = ACCUMULATORS[plan.pass_]
        self.full: dict[Cell, NDArray[np.bool_]] = {}  # [ranks, slices of heads]
        self.cut = {
            (s.q[0].value, s.kv[0].value)
            for s in loops.statements
            if isinstance(s, Attend) and not plain(s)
        }
        self.stays = at_owner
        self.at_owner: dict[Cell, NDArray[np.bool_]] = {}

    def run(self) -> Walk:
        for t, moment in enumerate(self.rows.moments):
            for s in moment.sums:
                self.take(s, t)
            for attend, rectangles in moment.attends.items():
                self.attend(attend, rectangles, t)
            for s, arriving in moment.sums.items():
                self.bring(s, *arriving, t)
        for cell, full in self.full.items():
            if cell[1] != OWN and full.any():
                raise PlanError(f"{cell[0]} for {cell[1]} is left on ranks that do not own it")
            if cell[1] == OWN and not full.all() and not self.result.accumulates(cell):
                raise PlanError(f"on some ranks nothing is added to {cell[0]}")
        return self.result

    def take(self, s: Handing, t: int) -> None:
        """The message leaves: its cell is empty, on all ranks."""
        cell = self.result.source[s] = source(s)
        self.result.taken.setdefault(cell, set()).add(t)
        if isinstance(s, Send):
            self.result.sent.setdefault(cell, set()).add(t)
        full = self.full.get(cell)
        if full is None:
            return
        if not full.all() and not (isinstance(s, Send) and s.when.guard != Guard()):
            self.result.crowded.add(cell)  # some ranks send zeros
        full = np.asarray(full.any(1))
        self.result.holders.setdefault(cell, {}).setdefault(t, np.flatnonzero(full))
        left = full & (self.rows.taken[t, cell] < 0).all(1) if isinstance(s, Send) else full & False
        if (left & ~self.at_owner.get(cell, left & False)).any():
            raise PlanError(f"step {t}: {cell[0]} for {cell[1]} stays behind on some ranks")
        self.full[cell][:] = False
        if left.any():  # what never left: these ranks own it
            own = cell[0], OWN
            self.result.kept[cell] = t
            self.add(own, t, np.flatnonzero(left), whole=True)

    def attend(self, s: Attend, rectangles: Rectangles, t: int) -> None:
        who = rectangles.rank
        if any(len({(p.value, p.lag) for p in parts}) > 1 for parts in (s.q, s.kv)):
            raise PlanError(f"step {t}: a rectangle of several values")
        self.result.attended.setdefault(s, {})[t] = rectangles
        for side, part, table in zip(SIDES, (s.q[0], s.kv[0]), rectangles.tables, strict=True):
            self.result.widths.setdefault((side, part.value), set()).add(table.shape[1])
        cut = (s.q[0].value, s.kv[0].value) in self.cut
        rows = [x.reshape(self.ranks, -1).take(who, axis=0) for x in rectangles.tables]
        for tensor in self.sums:
            of_queries = TENSORS[tensor].side == "q"
            part, blocks = (s.q[0], rectangles.q) if of_queries else (s.kv[0], rectangles.kv)
            cell = self.own_cell((tensor, part.value), t, who, blocks, rows[not of_queries])
            self.result.targets.setdefault(s, {}).setdefault(t, {})[tensor] = cell
            if cut:
                self.result.crowded.add(cell)
            uncut = part.pieces is None and s.kind != "strict"
            self.add(cell, t, who, whole=uncut, heads=self.heads(part.heads, t))

    def own_cell(self, own: Cell, t: int, who: Ints, attended: Ints, row: Ints) -> Cell:
        """The cell of a value: one that a later message empties, else that of what stays.

        `own` is the one of its name; `row` has all blocks of it, of which some are `attended`.
        """
        if self.stays and own[1] == OWN:
            return own
        side = TENSORS[own[0]].side
        for cell, taken in sorted(self.later(own[0], t), key=lambda item: item[0] != own):
            taken = taken[who]
            sent = (taken >= 0).any(axis=1)
            whole = (sent.any() or cell == own) and same(taken[sent], row[sent])
            part = cell == own and within(attended[sent], taken[sent])
            if (whole or part) and self.own(side, attended[~sent], who[~sent]):
                self.at_owner.setdefault(cell, np.zeros(self.ranks, bool))[who[~sent]] = True
                return cell
        return self.staying(own[0], t, who, row, f"sums for {own[1]} are nowhere kept")

    def later(self, tensor: str, t: int) -> Iterator[tuple[Cell, Ints]]:
        """The cells that messages empty after a step, and what the first of these takes."""
        for cell, times in self.rows.times.items():
            if cell[0] == tensor and (later := times[bisect_right(times, t) :]):
                yield cell, self.rows.taken[later[0], cell]

    def staying(self, tensor: str, t: int, who: Ints, blocks: Ints, wrong: str) -> Cell:
        """The cell of a value that stays, and that has these blocks."""
        for (side, name), table in self.rows.moments[t].stay.items():
            row = table.reshape(self.ranks, -1).take(who, axis=0)
            if side == TENSORS[tensor].side and same(row, blocks):
                return tensor, name
        raise PlanError(f"step {t}: {wrong}")

    def own(self, side: str, blocks: Ints, ranks: Ints) -> bool:
        """True if ranks own these blocks."""
        owners = self.plan.partition.side(side).owners
        return not ((blocks >= 0) & (owners[blocks] != ranks[:, None])).any()

    def bring(self, s: Handing, ranks: Ints, blocks: Ints, t: int) -> None:
        """The message arrives: into the cell that its blocks belong to."""
        tensor, heads = s.tensors[0], None
        side = self.plan.side(tensor)
        dst, into = np.arange(self.ranks), (tensor, OWN)
        if isinstance(s, Return):
            into = tensor, self.loops.source(s)
            if into[1] == OWN and not self.own(TENSORS[tensor].side, blocks, ranks):
                raise PlanError(f"{tensor} comes back to ranks that do not own its blocks")
            heads = np.unique(side.slice[blocks[blocks >= 0]])
        else:
            dst, into = ranks, self.receiver(tensor, t, ranks, blocks)
        self.result.into.setdefault(s, {})[t] = into
        whole = not isinstance(s, Send) or not cut(s)
        self.add(into, t, dst, whole=whole, heads=heads)

    def heads(self, ends: Ends | None, t: int) -> Ints | None:
        """The slices of heads that any rank says, from the first to the last; None for all."""
        if ends is None:
            return None
        low, high = (e.at(t, self.loops.coordinates()) for e in ends)
        return np.arange(low.min(), high.max() + 1)

    def receiver(self, tensor: str, t: int, dst: Ints, blocks: Ints) -> Cell:
        """The cell of sums that arrive: one that a later message empties, else of what stays."""
        for cell, taken in self.later(tensor, t):
            if same(taken[dst], blocks):
                return cell
        wrong = f"{tensor} arrives for different values on different ranks"
        return self.staying(tensor, t, dst, blocks, wrong)

    def add(self, cell: Cell, t: int, who: Ints, whole: bool, heads: Ints | None = None) -> None:
        slices = len(self.plan.side(cell[0]).slices)
        full = self.full.setdefault(cell, np.zeros((self.ranks, slices), bool))
        rows: Any = who if heads is None else np.ix_(who, heads)
        if full[rows].any():
            self.result.crowded.add(cell)
            self.result.again.add(cell)
        full[rows] = True
        if heads is not None and len(heads) < slices:
            self.result.parted.add(cell)
        self.result.whole[cell] = self.result.whole.get(cell, True) and whole


def within(fewer: Ints, more: Ints) -> bool:
    """True if each row holds all blocks of the row of fewer."""
    rank, block = flat(np.arange(len(fewer)), fewer)
    others, blocks = flat(np.arange(len(more)), more)
    many = 1 + max(block.max(initial=0), blocks.max(initial=0))
    return bool(np.isin(rank * many + block, others * many + blocks).all())
