"""walk(rows)   follows sums over the rows of a loop form: where they are added and sent from.

A *cell* is what a program keeps running sums in: (tensor, value), the sums of one tensor for the
blocks of one value. In the cell of a value that travels is what the next message takes along.
PlanError is raised where sums would be left behind or meet others.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codegen.text import Flags
from planner.analysis.tiles import LIVE, tiles
from planner.columns import flat, taken, twice
from planner.errors import PlanError
from planner.ir import ACCUMULATORS, TENSORS, Move, Plan
from planner.loops.expand import SIDES, Expansion, expand
from planner.loops.form import (
    HELD,
    OWN,
    Attend,
    Ends,
    Guard,
    Ints,
    Loops,
    Part,
    Return,
    Send,
    Statement,
)
from planner.loops.values import Copies, same
from planner.partitions import Partition

Cell = tuple[str, str]  # tensor, value
Handing = Send | Return  # statements that may move sums
Moment = tuple[dict[Handing, Move], list[Attend]]
NONE: Ints = np.zeros(0, np.intp)  # no codes


def walk(rows: Expansion, at_owner: bool = False) -> tuple[Loops, "Walk"]:
    """Follow the sums of a pass through its steps; in the loops, each attend adds to one cell.

    `at_owner`: sums for what ranks own stay with them, whatever the plan does.
    """
    walked = Walk(rows, at_owner)
    statements = tuple(x for s in rows.loops.statements for x in _spans(s, walked))
    return replace(rows.loops, statements=statements), walked


def settled(rows: Expansion) -> tuple[Loops, "Walk"]:
    """Follow the sums, for targets whose ranks all do the same.

    Where some ranks own sums that others send on, all sums for what ranks own stay with them, or
    PlanError is raised.
    """
    given, walked = walk(rows)
    if walked.kept:
        own = [s for s, cell in walked.source.items() if isinstance(s, Send) and cell[1] == OWN]
        left = tuple(s for s in rows.loops.statements if s not in own)
        given, walked = walk(expand(replace(rows.loops, statements=left), rows.plan), at_owner=True)
    if walked.kept:
        raise PlanError("some partial results stay on a rank while others travel on")
    return given, walked


def _spans(s: Statement, walked: "Walk") -> Iterator[Statement]:
    """A statement; if it is an attend, one for the steps of each cell that it adds to."""
    targets = walked.targets.get(s, {}) if isinstance(s, Attend) else {}
    runs = [[*run] for _, run in groupby(targets, key=targets.__getitem__)]
    if not isinstance(s, Attend) or len(runs) < 2 or s.when.every > 1:
        yield s
        return
    del walked.targets[s]
    attended = walked.attended.pop(s)
    for span in runs:
        part = replace(s, when=replace(s.when, first=span[0], last=span[-1]))
        walked.targets[part] = {t: targets[t] for t in span}
        walked.attended[part] = {t: attended[t] for t in span}
        yield part


@dataclass(frozen=True)
class Rectangles:
    """The rectangles of an attend in a step: on which ranks [n], and their blocks [n, w].

    `tables` have all blocks of the two values [ranks, pieces, heads].
    """

    rank: Ints
    q: Ints
    kv: Ints
    tables: tuple[Ints, Ints]

    @property
    def rows(self) -> tuple[Ints, Ints]:
        """All pieces of both values, in their order, as blocks of any heads."""
        q, kv = (x[:, :, 0].take(self.rank, axis=0) for x in self.tables)
        return q, kv

    def attended(self, sides: Partition, rows: tuple[Ints, Ints]) -> Flags:
        """Of pairs of pieces, blocks of any heads [n, a] and [n, b], those that are attended."""
        row = np.arange(len(self.rank))[:, None]
        q, kv = (
            np.isin(chunk[x] + row * len(chunk), (chunk[y] + row * len(chunk))[y >= 0])
            for chunk, x, y in (
                (sides.q.chunk, rows[0], self.q),
                (sides.kv.chunk, rows[1], self.kv),
            )
        )
        return np.asarray(q[:, :, None] & kv[:, None, :])


class Walk:
    """The sums of a pass, by statement and step.

    `targets` are the cells that attends add to, by tensor, and `into` those of messages; `source`
    is the cell that a message takes. `pieces` is the most that a value ever has; `cut` are pairs
    of values some of whose rectangles have no shape with a name.
    """

    def __init__(self, rows: Expansion, at_owner: bool = False) -> None:
        self.rows, self.plan, self.at_owner = rows, rows.plan, at_owner
        self.values, self.tables = rows.values, rows.tables
        self.loops = loops = rows.loops
        self.targets = defaultdict[Attend, dict[int, dict[str, Cell]]](dict)
        self.into = defaultdict[Statement, dict[int, Cell]](dict)
        self.attended = defaultdict[Attend, dict[int, Rectangles]](dict)
        self.source = {s: source(s) for s in loops.statements if isinstance(s, Handing) and s.sums}
        self.taken = defaultdict[Cell, set[int]](set)  # steps in which sums leave
        for s, cell in self.source.items():
            self.taken[cell].update(s.when.steps)
        self.holders = defaultdict[Cell, dict[int, Ints]](dict)  # ranks that have these
        self.kept = dict[Cell, int]()  # step in which owners keep their sums
        self.whole = dict[Cell, bool]()  # every addition is of all pieces
        self.crowded = set[Cell]()  # something is added to what is there
        self.parted = set[Cell]()  # additions are of some heads each
        self.pieces = defaultdict[tuple[str, str], int](int)
        cut = (s for s in loops.statements if isinstance(s, Attend) and not plain(s))
        self.cut = {(s.q[0].value, s.kv[0].value) for s in cut}
        self._full = dict[Cell, NDArray[np.bool_]]()  # where sums are: [ranks, slices of heads]
        self._here = dict[Cell, Ints]()  # codes of what was added, and may stay
        self._leaving = defaultdict[Cell, dict[int, tuple[Ints, Ints]]](dict)  # ranks, codes
        for t, moment in enumerate([self._moment(t) for t in range(loops.steps)]):
            self._add_up(t, moment)
        del self._here, self._leaving
        for side, values in self.values.items():
            for (name, _), value in values.named.items():
                self.pieces[side, name] = max(self.pieces[side, name], value.table.shape[1])
        for cell, full in self._full.items():
            if cell[1] != OWN and full.any():
                raise PlanError(f"partial {cell[0]} is left on ranks that do not own it")
            if cell[1] == OWN and not full.all() and not self.accumulates(cell):
                raise PlanError(f"some ranks compute nothing for their own {cell[0]}")

    def _moment(self, t: int) -> Moment:
        """The messages of sums in a step, and its rectangles."""
        sums = {s: m[t] for s in self.source if t in (m := self.rows.sums[s])}
        sent = defaultdict[Cell, list[Copies]](list)
        for s, move in sums.items():
            if isinstance(s, Send):
                if not self._into_whole(s, t, move.src, move.dst):
                    tensor = s.tensors[0]
                    raise PlanError(f"in step {t} partial {tensor} meets blocks that it is not of")
                sent[self.source[s]].append((move.src, move.blocks))
            elif (exchange := self.loops.exchanges.get(s.name)) and exchange.again:
                table = self.rows.value(Part(s.name, s.lag), s.side, t).table
                sent[self.source[s]].append((self.rows.everyone, table.reshape(len(table), -1)))
        for cell, copies in sent.items():
            ranks = np.concatenate([rank for rank, _ in copies])
            if twice(ranks):
                raise PlanError(f"in step {t} a rank sends partial results in several messages")
            codes = np.concatenate([self._codes(cell[0], *x) for x in copies])
            self._leaving[cell][t] = ranks, np.sort(codes)
        attends = [s for s in self.loops.statements if isinstance(s, Attend) and s.when.on(t)]
        for attend in attends:
            self._rectangles(attend, t)
        return sums, attends

    def _into_whole(self, s: Send, t: int, src: Ints, dst: Ints) -> bool:
        """True if the value that sums are for is all of the one that they are added to."""
        if s.into is None:
            return False
        both = (s.parts[0], src), (s.into, dst)
        of, into = (self.rows.blocks(Part(p.value, p.lag), s.side, t, who) for p, who in both)
        return same(of, into)

    def _rectangles(self, s: Attend, t: int) -> None:
        """Note the rectangles of an attend."""
        if any(len({(p.value, p.lag) for p in parts}) > 1 for parts in (s.q, s.kv)):
            raise PlanError(f"in step {t} a rank attends at once to blocks of several messages")
        tables = self.rows.value(s.q[0], "q", t).table, self.rows.value(s.kv[0], "kv", t).table
        rows = self.rows.rectangles[s][t]
        self.attended[s][t] = Rectangles(rows.rank, rows.q, rows.kv, tables)

    def _stays(self, side: str, table: Ints, t: int, rank: Ints) -> str | None:
        """The name of what stays and has the blocks of a value: own, else of what came last."""
        exchanges = (s for s in self.loops.exchanges.values() if not s.again and s.when.first < t)
        for name in (OWN, *reversed([HELD, *(s.name for s in exchanges if s.side == side)])):
            stays = self.tables.get((side, name))
            if stays is not None and same(*(x.reshape(len(x), -1)[rank] for x in (stays, table))):
                return name
        return None

    def _add_up(self, t: int, moment: Moment) -> None:
        """Messages leave, then attends add, then arrivals are added."""
        sums, attends = moment
        cells = {self.source[s]: None for s in sums}
        for cell in cells:
            if not self._leaves(cell, t, self._here.pop(cell, NONE)):
                raise PlanError(f"in step {t} partial {cell[0]} stays behind on some ranks only")
        for s in sums:
            self._take(s, t)
        for cell in cells:
            self._leaving[cell].pop(t, None)
        for attend in attends:
            self._attend(attend, t)
        for s, move in sums.items():
            self._bring(s, t, move.dst, move.blocks)

    def _codes(self, tensor: str, rank: Ints, blocks: Ints) -> Ints:
        """One number for each rank and block."""
        rank, block = flat(rank, blocks)
        return rank * len(self.plan.side(tensor)) + block

    def _leaves(self, cell: Cell, t: int, codes: Ints) -> bool:
        """True if messages take all of these sums in a step, but for those of who owns them."""
        if t not in self._leaving[cell]:
            return True  # all go back over an exchange
        (src, sent), side = self._leaving[cell][t], self.plan.side(cell[0])
        left = beyond(codes, sent)
        rank, block = np.divmod(left, len(side))
        return not len(left) or bool((~np.isin(rank, src) & (side.owners[block] == rank)).all())

    def _take(self, s: Handing, t: int) -> None:
        """The message leaves: its cell is empty, on all ranks."""
        cell = self.source[s]
        if (full := self._full.get(cell)) is None:
            return
        if not full.all() and not (isinstance(s, Send) and s.when.guard != Guard()):
            self.crowded.add(cell)  # some ranks send zeros
        holders = taken(self.rows.everyone, np.flatnonzero(full.any(axis=1)))
        self.holders[cell].setdefault(t, holders)
        full[:] = False
        sending, _ = self._leaving[cell].get(t, (holders, holders))
        left = holders[~np.isin(holders, sending)]
        if len(left):  # what never left: these ranks own it
            self.kept[cell] = t
            self._add((cell[0], OWN), left, whole=True)

    def _attend(self, s: Attend, t: int) -> None:
        """Add to the cells of both values, of what a message takes next or of what stays."""
        rectangles, cut = self.attended[s][t], (s.q[0].value, s.kv[0].value) in self.cut
        for tensor in ACCUMULATORS[self.plan.pass_]:
            i = SIDES.index(TENSORS[tensor].side)
            part = (s.q, s.kv)[i][0]
            codes = self._codes(tensor, rectangles.rank, (rectangles.q, rectangles.kv)[i])
            cell = tensor, part.value
            later = next(iter(self._leaving[cell]), None)
            leaves = later is not None and self._leaves(cell, later, codes)
            if self.at_owner or not leaves:
                equal = self._stays(SIDES[i], rectangles.tables[i], t, rectangles.rank)
                if equal is None and not leaves:
                    raise PlanError(f"in step {t} partial results have no place on the rank")
                if equal == OWN or (equal and not leaves):
                    cell = tensor, equal
                    self._stay(cell, codes)
            self.targets[s].setdefault(t, {})[tensor] = cell
            if cut:
                self.crowded.add(cell)
            uncut = part.pieces is None and s.kind != "strict"
            self._add(cell, rectangles.rank, whole=uncut, heads=self._heads(part.heads, t))

    def _bring(self, s: Handing, t: int, dst: Ints, blocks: Ints) -> None:
        """The message arrives: into the cell that its blocks belong to."""
        tensor, heads, whole = s.tensors[0], None, True
        codes = self._codes(tensor, dst, blocks)
        if isinstance(s, Return):
            into = tensor, self.loops.source(s)
            slices = self.plan.side(tensor).slice
            dst, heads = self.rows.everyone, np.unique(slices[blocks[blocks >= 0]])
        else:
            assert s.into
            into, whole = (tensor, s.into.value), not any(p.pieces for p in s.parts)
        self.into[s][t] = into
        self._stay(into, codes)
        self._add(into, dst, whole, heads)

    def _stay(self, cell: Cell, codes: Ints) -> None:
        """Note what was added to a cell, until it leaves."""
        here = self._here.get(cell, NONE)
        if len(new := beyond(codes, here)):
            self._here[cell] = np.sort(np.concatenate([here, new]))

    def _heads(self, ends: Ends | None, t: int) -> Ints | None:
        """The slices of heads that any rank says, from the first to the last; None for all."""
        if ends is None:
            return None
        low, high = (e.at(t, self.rows.coordinates) for e in ends)
        return np.arange(low.min(), high.max() + 1)

    def _add(self, cell: Cell, who: Ints, whole: bool, heads: Ints | None = None) -> None:
        slices = len(self.plan.side(cell[0]).slices)
        full = self._full.setdefault(cell, np.zeros((self.plan.ranks, slices), bool))
        rows: Any = who if heads is None else np.ix_(who, heads)
        if full[rows].any():
            self.crowded.add(cell)
        full[rows] = True
        if heads is not None and len(heads) < slices:
            self.parted.add(cell)
        self.whole[cell] = self.whole.get(cell, True) and whole

    # ---- what is read of it

    def additions(self) -> Iterator[tuple[Statement, int, Cell]]:
        """Each addition to a cell in a step: of an attend, or of a message that arrives."""
        for s, steps in self.targets.items():
            yield from ((s, t, cell) for t, cells in steps.items() for cell in cells.values())
        for message, into in self.into.items():
            yield from ((message, t, cell) for t, cell in into.items())

    def lasting(self, cell: Cell) -> tuple[set[int], set[int]]:
        """The steps in which sums begin with nothing, and those through whose start they stay."""
        added, taken = {t for _, t, c in self.additions() if c == cell}, self.taken.get(cell, set())
        if cell[1] == OWN:  # what some owners send, and others keep
            added |= {t for c, t in self.kept.items() if c[0] == cell[0]}
            taken = taken - {self.kept.get(cell, -1)}
        begun, stay, full = set[int](), set[int](), False
        for t in range(min(added, default=0), max(added | taken, default=-1) + 1):
            full = full and t not in taken
            if full:
                stay.add(t)
            elif t in added:
                begun.add(t)
            full = full or t in added
        return begun, stay

    def width(self, side: str, name: str) -> int:
        """The number of pieces of a value where attends read it, the same in all steps."""
        i = SIDES.index(side)
        reading = (steps for s, steps in self.attended.items() if (s.q, s.kv)[i][0].value == name)
        width, *more = {int(r.tables[i].shape[1]) for steps in reading for r in steps.values()}
        if more:
            raise PlanError("a rank holds more pieces in some steps than in others")
        return width

    def accumulates(self, cell: Cell) -> bool:
        """True if sums begin with nothing."""
        return cell in self.parted or not self.complete(cell)

    def complete(self, cell: Cell) -> bool:
        """True if what is added once is all there is of it."""
        return cell not in self.crowded and self.whole[cell]


def beyond(codes: Ints, known: Ints) -> Ints:
    """The codes that are not among known ones, which ascend."""
    new: Ints = codes[known.searchsorted(codes) == known.searchsorted(codes, "right")]
    return new


def source(s: Handing) -> Cell:
    """The cell that sums are taken from, all of it."""
    if isinstance(s, Return):
        return s.tensors[0], s.name
    if len({(p.value, p.lag) for p in s.parts}) > 1:
        raise PlanError("partial results of several origins travel in one message")
    return s.tensors[0], s.parts[0].value


def plain(s: Attend) -> bool:
    """True if nothing has to be cut out of a rectangle: it has no gaps, and a shape with a name."""
    return s.kind in ("full", "causal", "strict") and len(s.q) == len(s.kv) == 1


def seen(plan: Plan, rows: tuple[Ints, Ints]) -> Flags:
    """Which pairs of pieces, blocks of any heads [n, a] and [n, b], the mask lets meet."""
    q, kv = plan.partition.q.chunk[rows[0]], plan.partition.kv.chunk[rows[1]]
    return np.asarray(tiles(plan).chunk_kinds[q[:, :, None], kv[:, None, :]] & LIVE, np.bool_)
