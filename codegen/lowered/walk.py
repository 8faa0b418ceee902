"""walk(plan, loops)   runs a loop form once over the blocks: where sums are added and sent from.

It finds the cell that each attend adds to and that each message is added to, and raises PlanError
where sums would be left behind or meet others.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codegen.lowered.sums import PLAIN, Cell, Rectangles, Walk
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

Messages = tuple[Ints, Ints, Ints]  # src, dst, blocks [n, w]


def walk(
    plan: Plan, loops: Loops, every: bool = False, at_home: bool = False
) -> tuple[Loops, Walk]:
    """Follow the sums of a pass through its steps; in the loops, each attend adds to one cell.

    `every`: of every attend its rectangles are kept, and not only of those that the mask cuts.
    `at_home`: sums for what ranks own stay with them, whatever the plan does.
    """
    walked = _Walker(plan, loops, every, at_home).run()
    statements = (x for i, s in enumerate(loops.statements) for x in _apart(i, s, walked))
    apart = replace(loops, statements=tuple(statements))
    return (loops, walked) if apart == loops else walk(plan, apart, every, at_home)


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
    def __init__(self, plan: Plan, loops: Loops, every: bool, at_home: bool) -> None:
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
        self.every, self.stays = every, at_home
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
            rows: dict[Cell, list[Messages]] = defaultdict(list)
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

    def table(self, messages: list[Messages], where: str) -> Ints:
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
        if len({(p.value, p.lag) for p in s.parts}) > 1:
            raise PlanError(f"sums of {' + '.join(p.value for p in s.parts)} go together")
        if len(s.tensors) > 1:
            raise PlanError("sums of several tensors go together")
        return s.tensors[0], s.parts[0].value

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
        for cell in [c for c in self.result.sent if c[1] != OWN]:
            self.check_new(cell)
        for cell in [c for c in self.result.sent if c[1] == OWN]:
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
            self.result.sent.setdefault(cell, set()).add(t)
            self.result.guarded |= {cell} if s.when.guard != Guard() else set()
        full = self.full.get(cell)
        if full is None:
            return
        if not full.all() and not (isinstance(s, Send) and s.when.guard != Guard()):
            self.result.crowded.add(cell)  # some ranks send zeros
        full = np.asarray(full.any(1))
        self.result.holders.setdefault(cell, {}).setdefault(t, np.flatnonzero(full))
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
        cut = (s.q[0].value, s.kv[0].value) in self.cut
        if cut or self.every:
            rows = (self.row(parts, side, t, who) for side, parts in (("q", s.q), ("kv", s.kv)))
            self.result.attended.setdefault(i, {})[t] = Rectangles(who, q, kv, *rows)
        for tensor in self.sums:
            side = TENSORS[tensor].side
            parts = s.q if side == "q" else s.kv
            if len({(p.value, p.lag) for p in parts}) > 1:
                raise PlanError(f"step {t}: a rectangle of several {side} values")
            cell = self.home(tensor, parts, t, who)
            self.result.targets.setdefault((i, tensor), {})[t] = cell
            self.result.added.setdefault(cell, set()).add(t)
            self.left.pop(cell, None)
            if cut:
                self.result.crowded.add(cell)
            uncut = parts[0].pieces is None and s.kind != "strict"
            self.add(cell, t, who, whole=uncut, heads=self.heads(parts[0].heads, t))

    def row(self, parts: tuple[Part, ...], side: str, t: int, who: Ints) -> Ints:
        """All pieces of the value that a rectangle has parts of, as blocks of any heads."""
        value, lag = parts[0].value, parts[0].lag
        table = self.state.stay.get((value, side))
        if table is None:
            born = t - int(lag.at(t, self.state.coordinates[:1])[0])
            table = self.state.aged[value, side, born]
        self.result.widths.setdefault((side, value), set()).add(table.shape[1])
        return table[who, :, 0]

    def home(self, tensor: str, parts: tuple[Part, ...], t: int, who: Ints) -> Cell:
        """The cell of a value: one that a later message empties, else that of what stays."""
        side, value = TENSORS[tensor].side, parts[0].value
        if self.stays and value == OWN:
            return tensor, OWN
        blocks = self.state.blocks(Part(value, parts[0].lag), side, t, who)
        attended = np.hstack([self.state.blocks(p, side, t, who) for p in parts])
        for cell, times in sorted(self.times.items(), key=lambda item: item[0][1] != value):
            if cell[0] != tensor or not (later := times[bisect_right(times, t) :]):
                continue
            taken = self.taken[later[0], cell][who]
            sent = (taken >= 0).any(axis=1)
            whole = (sent.any() or cell[1] == value) and same(taken[sent], blocks[sent])
            part = cell[1] == value and within(attended[sent], taken[sent])
            if (whole or part) and self.own(side, attended[~sent], who[~sent]):
                self.at_home.setdefault(cell, np.zeros(self.ranks, bool))[who[~sent]] = True
                return cell
        for name, where in self.state.stay:
            if where == side and same(self.state.blocks(Part(name), side, t, who), blocks):
                return tensor, name
        raise PlanError(f"step {t}: sums for {value} are nowhere kept")

    def own(self, side: str, blocks: Ints, ranks: Ints) -> bool:
        """True if ranks own these blocks."""
        homes = self.plan.partition.side(side).homes
        return not ((blocks >= 0) & (homes[blocks] != ranks[:, None])).any()

    def bring(self, i: int, s: Send | Return | Scatter, t: int) -> None:
        """The message arrives: into the cell that its blocks belong to."""
        tensor, side = s.tensors[0], TENSORS[s.tensors[0]].side
        heads: Ints | None = None
        whole = True
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
            ((src, dst, blocks),) = self.state.send(s, t)
            if any(p.pieces for p in s.parts):
                whole, value = False, Part(s.parts[0].value, s.parts[0].lag)
                blocks = self.state.blocks(value, side, t, src, sums=True)
            into = self.receiver(tensor, side, t, dst, blocks)
        self.result.into.setdefault(i, {})[t] = into
        self.result.arrivals.setdefault(into, []).append(t)
        self.replace(i, into, t, dst)
        self.add(into, t, dst, whole=whole, heads=heads)

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
            self.result.again.add(cell)
        full[rows] = True
        if heads is not None and len(heads) < slices:
            self.result.parted.add(cell)
        self.result.last.pop(cell, None)  # it lives on
        self.result.first.setdefault(cell, t)
        self.result.whole[cell] = self.result.whole.get(cell, True) and whole


def within(fewer: Ints, more: Ints) -> bool:
    """True if each row holds all blocks of the row of fewer."""
    rank, block = flat(np.arange(len(fewer)), fewer)
    others, blocks = flat(np.arange(len(more)), more)
    many = 1 + max(block.max(initial=0), blocks.max(initial=0))
    return bool(np.isin(rank * many + block, others * many + blocks).all())
