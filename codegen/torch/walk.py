"""walk(plan, loops)   runs a loop form once over the blocks: where sums are added and sent from.

A *cell* is what a program keeps running sums in: (tensor, value), the sums of one tensor for the
blocks of one value. In the cell of a value that travels is what the next message takes along. The
walk finds the cell that each attend adds to and that each message is added to, and raises
PlanError where sums would be left behind or meet others.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.columns import flat
from planner.errors import PlanError
from planner.ir import ACCUMULATORS, TENSORS, Plan
from planner.loops.expand import Expansion
from planner.loops.form import (
    HELD,
    OWN,
    AllToAll,
    Attend,
    Ends,
    Gather,
    Guard,
    Ints,
    Loops,
    Part,
    Return,
    Scatter,
    Send,
    Start,
    Statement,
)
from planner.loops.values import owned, same

Cell = tuple[str, str]  # tensor, value
Rows = tuple[Ints, Ints, Ints]  # src, dst, blocks [n, w]; or rank, q, kv
PLAIN = "full", "causal", "strict"  # kinds that need no cutting


@dataclass
class Walk:
    """The sums of a pass, by the number of a statement and the step."""

    targets: dict[tuple[int, str], dict[int, Cell]] = field(default_factory=dict)  # attends
    into: dict[int, dict[int, Cell]] = field(default_factory=dict)  # sends and returns
    source: dict[int, Cell] = field(default_factory=dict)  # of sends and returns
    first: dict[Cell, int] = field(default_factory=dict)  # step of the first addition
    last: dict[Cell, int] = field(default_factory=dict)  # step of the last message
    arrivals: dict[Cell, list[int]] = field(default_factory=dict)  # steps in which some arrive
    pieces: dict[tuple[str, str], int] = field(default_factory=dict)  # of each value: side, name
    tables: dict[tuple[str, str], Ints] = field(default_factory=dict)  # of values that stay
    aged: dict[tuple[str, str, int], Ints] = field(default_factory=dict)  # side, name, step
    attended: dict[int, dict[int, Rows]] = field(default_factory=dict)  # statement, step
    whole: dict[Cell, bool] = field(default_factory=dict)  # every addition is of all pieces
    kept: dict[Cell, int] = field(default_factory=dict)  # step in which owners keep their sums
    taken: dict[Cell, set[int]] = field(default_factory=dict)  # steps in which sums leave
    added: dict[Cell, set[int]] = field(default_factory=dict)  # and in which attends add to them
    sent: set[Cell] = field(default_factory=set)  # from rank to rank
    guarded: set[Cell] = field(default_factory=set)  # by some ranks only
    crowded: set[Cell] = field(default_factory=set)  # something is added to what is there
    anew: set[tuple[int, int]] = field(default_factory=set)  # statement, step: after what left
    beside: set[Cell] = field(default_factory=set)  # sums come that some ranks have already
    parted: set[Cell] = field(default_factory=set)  # additions are of some heads each

    def accumulates(self, cell: Cell) -> bool:
        """True if sums begin with nothing."""
        return cell in self.parted or not self.complete(cell)

    def complete(self, cell: Cell) -> bool:
        """True if what is added once is all there is of it."""
        return cell not in self.crowded and self.whole[cell]

    def relayed(self, cell: Cell) -> bool:
        """True if sums come from other ranks and go on."""
        return cell in self.last and cell in self.arrivals and cell not in self.beside


def walk(plan: Plan, loops: Loops) -> tuple[Loops, Walk]:
    """Follow the sums of a pass through its steps; in the loops, each attend adds to one cell."""
    walked = _Walker(plan, loops).run()
    statements = (x for i, s in enumerate(loops.statements) for x in _apart(i, s, walked))
    apart = replace(loops, statements=tuple(statements))
    return (loops, walked) if apart == loops else (apart, _Walker(plan, apart).run())


def _apart(i: int, s: Statement, walked: Walk) -> Iterator[Statement]:
    """A statement; if it is an attend, one for the steps of each cell that it adds to."""
    cells: dict[int, list[Cell]] = {}
    for (n, _), steps in walked.targets.items():
        for t, cell in steps.items() if n == i else ():
            cells.setdefault(t, []).append(cell)
    runs = [[*run] for _, run in groupby(sorted(cells), key=cells.__getitem__)]
    if len(runs) < 2 or s.when.every > 1:
        yield s
        return
    for span in runs:
        yield replace(s, when=replace(s.when, first=span[0], last=span[-1]))


class _Walker:
    def __init__(self, plan: Plan, loops: Loops) -> None:
        self.plan, self.loops, self.ranks = plan, loops, plan.ranks
        self.state = Expansion(loops, plan)
        self.result = Walk()
        self.sums = ACCUMULATORS[plan.pass_]
        self.full: dict[Cell, NDArray[np.bool_]] = {}  # [ranks, slices of heads]
        self.cut = {
            (s.q[0].value, s.kv[0].value)
            for s in loops.statements
            if isinstance(s, Attend) and s.kind not in PLAIN
        }
        self.at_home: dict[Cell, NDArray[np.bool_]] = {}
        self.left: dict[Cell, NDArray[np.bool_]] = {}  # ranks whose variable has sums that left
        self.mixed: dict[Cell, str] = {}  # what is wrong with cells that begin with nothing
        self.taken = dict(self.messages())
        self.times: dict[Cell, list[int]] = defaultdict(list)
        for t, cell in sorted(self.taken):
            self.times[cell].append(t)
        self.state = Expansion(loops, plan)

    # -- the first walk: what each message of sums takes along

    def messages(self) -> Iterator[tuple[tuple[int, Cell], Ints]]:
        """((step, cell), the blocks whose sums each rank sends: [ranks, w]) of all sends."""
        for t in range(self.loops.steps):
            rows: dict[Cell, list[Rows]] = defaultdict(list)
            for _, s in self.active(t):
                if isinstance(s, Send) and TENSORS[s.tensors[0]].accumulates:
                    rows[self.cell(s)] += self.state.send(s, t)
                else:
                    self.follow(s, t)
            self.state.arrive()
            for cell, messages in rows.items():
                yield (t, cell), self.table(messages, f"step {t}")

    def active(self, t: int) -> Iterator[tuple[int, object]]:
        return ((i, s) for i, s in enumerate(self.loops.statements) if s.when.on(t))

    def follow(self, s: object, t: int) -> None:
        match s:
            case Start():
                self.state.start(s, t)
            case Send():
                self.state.send(s, t)
            case Gather() | AllToAll():
                self.state.exchange(s, t)

    def table(self, messages: list[Rows], where: str) -> Ints:
        """The blocks that each rank sends; a rank sends a sum once."""
        width = max(blocks.shape[1] for _, _, blocks in messages)
        table = np.full((self.ranks, width), -1, np.intp)
        for src, _, blocks in messages:
            if (table[src] >= 0).any() or len(np.unique(src)) < len(src):
                raise PlanError(f"{where}: a rank sends sums of one value in several messages")
            table[src, : blocks.shape[1]] = blocks
        return table

    def cell(self, s: Send) -> Cell:
        """The cell that a message of sums is taken from, all of it."""
        part, many = s.parts[0], len(s.parts)
        if many > 1 or part.pieces or part.heads:
            raise PlanError(f"sums of {' + '.join(p.value for p in s.parts)} go in parts")
        if len(s.tensors) > 1:
            raise PlanError("sums of several tensors go together")
        return s.tensors[0], part.value

    # -- the second walk: what is added to which cell

    def run(self) -> Walk:
        for side in ("q", "kv"):
            table = owned(self.ranks, self.plan.partition.side(side))
            self.result.tables[side, "owned"] = table
            if (HELD, side) in self.state.stay:
                self.result.tables[side, HELD] = self.state.stay[HELD, side]
        for t in range(self.loops.steps):
            statements = list(self.active(t))
            for i, s in statements:
                if isinstance(s, Start):
                    self.state.start(s, t)
                elif isinstance(s, Send | Return | Scatter) and TENSORS[s.tensors[0]].accumulates:
                    self.take(i, s, t)
            older = {cell for cell, full in self.full.items() if full.any()}
            for i, s in statements:
                if isinstance(s, Attend):
                    self.attend(i, s, t)
            for i, s in statements:
                if isinstance(s, Send | Return | Scatter) and TENSORS[s.tensors[0]].accumulates:
                    self.bring(i, s, t)
                    self.result.beside |= {self.result.into[i][t]} & older
                elif not isinstance(s, Start):
                    self.follow(s, t)
            self.note()
            self.state.arrive()
        self.note()
        self.result.beside = {cell for cell in self.result.beside if cell in self.result.last}
        self.result.crowded |= self.result.beside
        for (name, side, born), table in self.state.aged.items():
            self.count(side, name, table)
            self.result.aged[side, name, born] = table
        for cell in self.result.sent - {(tensor, OWN) for tensor in self.sums}:
            self.check_new(cell)
        for cell in self.result.sent & {(tensor, OWN) for tensor in self.sums}:
            self.check_sent(cell)
        for cell, full in self.full.items():
            if cell[1] != OWN and full.any():
                raise PlanError(f"{cell[0]} for {cell[1]} is left on ranks that do not own it")
            if cell[1] == OWN and not full.all() and not self.result.accumulates(cell):
                raise PlanError(f"on some ranks nothing is added to {cell[0]}")
        return self.result

    def check_sent(self, cell: Cell) -> None:
        """Raise PlanError where owners would keep sums that they sent, or lose some."""
        r = self.result
        if not r.accumulates(cell) or r.relayed(cell):
            return
        if any(t + 1 not in r.taken[cell] for t in r.added.get(cell, set())):
            raise PlanError(f"{cell[0]} of owners is added to for several steps, and sent")
        if cell in self.mixed:
            raise PlanError(self.mixed[cell])
        if self.left.get(cell, np.zeros(1, bool)).any():
            raise PlanError(f"{cell[0]} is sent by owners, and nothing comes back")

    def check_new(self, cell: Cell) -> None:
        """Raise PlanError unless sums that travel are new, or come, in each step."""
        r = self.result
        taken, came, added = r.taken[cell], {*r.arrivals.get(cell, [])}, r.added.get(cell, set())
        if came and any(t in taken and t not in came for t in added):
            raise PlanError(f"{cell[0]} for {cell[1]} begins anew where others go on")
        if not came and any(t + 1 not in taken for t in added):
            raise PlanError(f"{cell[0]} for {cell[1]} is added to for several steps")

    def count(self, side: str, name: str, table: Ints) -> None:
        """Note how many pieces a value has that can be read."""
        known = self.result.pieces.get((side, name), 0)
        self.result.pieces[side, name] = max(known, table.shape[1])

    def note(self) -> None:
        """Keep the tables of the values that stay, as they are now."""
        for (name, side), table in self.state.stay.items():
            self.count(side, name, table)
            if name != HELD:
                self.result.tables[side, name] = table

    def take(self, i: int, s: Send | Return | Scatter, t: int) -> None:
        """The message leaves: its cell is empty, on all ranks."""
        cell = self.emptied(s)
        self.result.source[i], self.result.last[cell] = cell, t
        self.result.taken.setdefault(cell, set()).add(t)
        if isinstance(s, Send):
            self.result.sent.add(cell)
            self.result.guarded |= {cell} if s.when.guard != Guard() else set()
        full = self.full.get(cell)
        if full is None:
            return
        if not full.all() and not (isinstance(s, Send) and s.when.guard != Guard()):
            self.result.crowded.add(cell)  # some ranks send zeros
        full = np.asarray(full.any(1))
        left = full & (self.taken[t, cell] < 0).all(1) if isinstance(s, Send) else full & False
        if (left & ~self.at_home.get(cell, left & False)).any():
            raise PlanError(f"step {t}: {cell[0]} for {cell[1]} stays behind on some ranks")
        self.left[cell] = np.logical_or(full, self.left.get(cell, False))
        self.full[cell][:] = False
        if left.any():  # what never left: these ranks own it
            own = cell[0], OWN
            self.result.kept[cell] = t
            self.add(own, t, np.flatnonzero(left), whole=True)

    def emptied(self, s: Send | Return | Scatter) -> Cell:
        """The cell whose sums go."""
        if isinstance(s, Send):
            return self.cell(s)
        if isinstance(s, Return):
            return s.tensors[0], s.exchange
        if s.part.pieces or s.part.heads:
            raise PlanError("sums of a part of a value go to their owners")
        return s.tensors[0], s.part.value

    def attend(self, i: int, s: Attend, t: int) -> None:
        who, q, kv = self.state.attend(s, t)
        if (s.q[0].value, s.kv[0].value) in self.cut:
            self.result.attended.setdefault(i, {})[t] = who, q, kv
        for tensor in self.sums:
            side = TENSORS[tensor].side
            parts = s.q if side == "q" else s.kv
            if len(parts) > 1:
                raise PlanError(f"step {t}: a rectangle of several {side} values")
            cell = self.home(tensor, parts[0], t, who)
            self.result.targets.setdefault((i, tensor), {})[t] = cell
            self.result.added.setdefault(cell, set()).add(t)
            self.left.pop(cell, None)
            if (s.q[0].value, s.kv[0].value) in self.cut:
                self.result.crowded.add(cell)
            uncut = parts[0].pieces is None and s.kind != "strict"
            self.add(cell, t, who, whole=uncut, heads=self.heads(parts[0].heads, t))

    def home(self, tensor: str, part: Part, t: int, who: Ints) -> Cell:
        """The cell of a value: one that a later message empties, else that of what stays."""
        side = TENSORS[tensor].side
        value = Part(part.value, part.lag)
        blocks = self.state.blocks(value, side, t, who)
        for cell, times in sorted(self.times.items(), key=lambda item: item[0][1] != part.value):
            later = times[bisect_right(times, t) :][:1]
            if cell[0] == tensor and later and self.leaves(cell, later[0], blocks, who, part):
                return cell
        for name, where in self.state.stay:
            if where == side and same(self.state.blocks(Part(name), side, t, who), blocks):
                return tensor, name
        raise PlanError(f"step {t}: sums for {part.value} are nowhere kept")

    def leaves(self, cell: Cell, t: int, blocks: Ints, who: Ints, part: Part) -> bool:
        """True if ranks send these blocks at step t, but for those who own them."""
        taken = self.taken[t, cell][who]
        sent = (taken >= 0).any(axis=1)
        if not (sent.any() or cell[1] == part.value) or not same(taken[sent], blocks[sent]):
            return False
        homes = self.plan.partition.side(TENSORS[cell[0]].side).homes
        rest, ranks = blocks[~sent], who[~sent]
        if ((rest >= 0) & (homes[rest] != ranks[:, None])).any():
            return False
        self.at_home.setdefault(cell, np.zeros(self.ranks, bool))[ranks] = True
        return True

    def bring(self, i: int, s: Send | Return | Scatter, t: int) -> None:
        """The message arrives: into the cell that its blocks belong to."""
        tensor, side = s.tensors[0], TENSORS[s.tensors[0]].side
        heads: Ints | None = None
        if isinstance(s, Scatter):
            dst, into = np.arange(self.ranks), (tensor, OWN)
        elif isinstance(s, Return):
            rows = [(d, r, b) for r, d, b in self.state.brought[s.exchange]]
            dst = np.arange(self.ranks)
            moved = [flat(to, blocks) for _, to, blocks in rows]
            rank, block = (np.concatenate(x) for x in zip(*moved, strict=True))
            if (self.plan.partition.side(side).homes[block] != rank).any():
                raise PlanError(f"{tensor} comes back to ranks that do not own its blocks")
            into = tensor, OWN
            heads = np.unique(self.plan.partition.side(side).slice[block])
        else:
            ((_, dst, blocks),) = self.state.send(s, t)
            into = self.receiver(tensor, side, t, dst, blocks)
        self.result.into.setdefault(i, {})[t] = into
        self.result.arrivals.setdefault(into, []).append(t)
        self.replace(i, into, t, dst)
        self.add(into, t, dst, whole=True, heads=heads)

    def heads(self, ends: Ends | None, t: int) -> Ints | None:
        """The slices of heads that any rank says, from the first to the last; None for all."""
        if ends is None:
            return None
        low, high = (e.at(t, self.state.coordinates) for e in ends)
        return np.arange(low.min(), high.max() + 1)

    def replace(self, i: int, into: Cell, t: int, dst: Ints) -> None:
        """Note sums that take the place of those that left; all of them, or none."""
        left = self.left.pop(into, None)
        if left is None or not left.any():
            return
        coming = np.zeros(self.ranks, bool)
        coming[dst] = True
        if (left & ~coming).any() or self.full[into][dst].any():
            self.mixed[into] = f"step {t}: {into[0]} comes to some ranks in place of what they sent"
        self.result.anew.add((i, t))

    def receiver(self, tensor: str, side: str, t: int, dst: Ints, blocks: Ints) -> Cell:
        for cell, times in self.times.items():
            later = times[bisect_right(times, t) :][:1]
            if cell[0] == tensor and later and same(self.taken[later[0], cell][dst], blocks):
                return cell
        for name, where in self.state.stay:
            if where == side and same(self.state.blocks(Part(name), side, t, dst), blocks):
                return tensor, name
        raise PlanError(f"step {t}: {tensor} arrives for different values on different ranks")

    def add(self, cell: Cell, t: int, who: Ints, whole: bool, heads: Ints | None = None) -> None:
        slices = len(self.plan.side(cell[0]).slices)
        full = self.full.setdefault(cell, np.zeros((self.ranks, slices), bool))
        rows: Any = who if heads is None else np.ix_(who, heads)
        if full[rows].any():
            self.result.crowded.add(cell)
        full[rows] = True
        if heads is not None and len(heads) < slices:
            self.result.parted.add(cell)
        self.result.last.pop(cell, None)  # it lives on
        self.result.first.setdefault(cell, t)
        self.result.whole[cell] = self.result.whole.get(cell, True) and whole
