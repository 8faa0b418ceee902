"""Statements: turns records of many steps that read the same names into the fewest statements.

Records are clustered by kind and slices, or slices are fitted as expressions of rank and step; then
the ranks of each cluster are fitted as guards. The cheapest result wins.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from ringloom.planner.analysis.kinds import KINDS, TILES
from ringloom.planner.ir import TENSORS
from ringloom.planner.loops.fitting import Piece, Sets, plane, runs
from ringloom.planner.loops.form import (
    Attend,
    Ends,
    Expr,
    Guard,
    Hop,
    Ints,
    Part,
    Root,
    Send,
    Shift,
    Start,
    Statement,
    When,
    walk_nodes,
)
from ringloom.planner.loops.naming import Group, constant
from ringloom.planner.loops.places import Role
from ringloom.planner.loops.transfers import Way
from ringloom.planner.loops.walk import Record

Slices = tuple[tuple[Ends | None, Ends | None], ...]  # pieces and heads per part
Parts = tuple[tuple[Role, Part], ...]
MOST = 64  # with more clusters, or slices of one step, there is no loop


def cost(statements: Iterable[Statement]) -> float:
    """Returns the cost of statements with their tables, bounds, moving slices and tile kinds."""
    return sum(map(_cost, statements))


def _cost(s: Statement) -> float:
    guard = s.when.guard
    total = 0.5 if isinstance(s, Start) else 1.0
    ends = [e for p in walk_nodes(Part, s) for pair in (p.pieces, p.heads) for e in pair or ()]
    total += sum(0.7 if e.table else 0.3 for e in ends if e.step or any(e.axes))
    total += 2 * guard.tabled + 0.1 * len(guard.bounds)
    total += 0.05 * sum(e is not None for b in guard.bounds for e in b[1:])
    if isinstance(s, Attend):
        total += 0.1 * (s.kind == "tiles")
    if isinstance(s, Send):
        sums = s.sums
        total += 1.5 * (sums and s.into is None)
        total += (0.1 if sums else 0.01) * (guard.receiver == sums)  # rather where it is attended
    return total


@dataclass(frozen=True)
class Cluster:
    """Records of consecutive steps that one statement expresses if their ranks have guards."""

    run: list[int]
    items: list[Record]
    parts: Parts
    tiles: bool = False  # True: the kind is only "tiles"

    @property
    def kind(self) -> int:
        """The most specific kind that all items have."""
        kinds = {i.kind for i in self.items}
        return TILES if self.tiles or len(kinds) > 1 else kinds.pop()


class Clusters:
    """The ways to express the items of one group."""

    def __init__(
        self, group: Group, items: list[Record], mesh: tuple[int, ...], where: Ints
    ) -> None:
        self.group, self.items, self.mesh, self.where = group, items, mesh, where
        self.name, self.tensors = group.key
        self.ranks = len(where)

    def best(self) -> list[Statement]:
        """Returns the cheapest list of statements, empty if there is none."""
        alike = defaultdict[object, list[Record]](list)
        for item in self.items:
            alike[item.names, tuple(cut.role for cut in item.cuts)].append(item)
        each = [self._cheapest(items) for items in alike.values()]
        best = [s for said in each for s in said] if all(each) else []
        if tiles := self._tiles():
            best = min(filter(None, (best, self.say(tiles, False))), key=cost, default=best)
        return best

    def _cheapest(self, items: list[Record]) -> list[Statement]:
        """Returns the cheapest statements of items that read as many slices of the same values."""
        ends = (False, True)[: 1 + bool(self.tensors)]  # guards on senders, or on receivers
        kinds = (True, False)[: 1 + any(i.kind == TILES for i in items)]  # tiles cover all kinds
        best = list[Statement]()
        for by_kind, alike in product(kinds, (True, False)):
            clusters = self.clusters(items, alike, by_kind) or []
            if best and cost(best) <= len(clusters):
                continue  # as each is a statement at least
            said = (self.say(clusters, receiver) for receiver in ends)
            best = min(filter(None, (best, *said)), key=cost, default=best)
        return best

    def _tiles(self) -> list[Cluster]:
        """Returns a cluster per run of steps whose items cover all allowed pairs."""
        cut = any(i.kind == TILES for i in self.items)
        if not cut or not all(i.meeting and i.meeting.complete for i in self.items):
            return []
        parts = tuple((role, Part(name, lag)) for role, name, lag in self.group.uses)
        each = ((run, _during(self.items, run)) for run in runs([*{i.t for i in self.items}]))
        return [Cluster(run, items, parts, True) for run, items in each]

    def clusters(self, items: list[Record], alike: bool, by_kind: bool) -> list[Cluster] | None:
        """Returns a cluster per run of steps; `alike`: of equal slices, `by_kind`: by kind."""
        groups = defaultdict[tuple[Slices, int], list[Record]](list)
        for item in items:
            slices = tuple(constant(cut) for cut in item.cuts) if alike else ()
            groups[slices, item.kind if by_kind else TILES].append(item)
        made = list[Cluster]()
        for group in groups.values() if len(groups) <= MOST else ():
            for run in runs([*{i.t for i in group}]):
                part = _during(group, run)
                if (parts := self._fits(part)) is None:
                    return None
                made.append(Cluster(run, part, parts))
        return made or None

    def _fits(self, items: list[Record]) -> Parts | None:
        """Returns the parts that all items read, with slices as expressions, or None."""
        made = list[tuple[Role, Part]]()
        for k, ((name, lag), cut) in enumerate(zip(items[0].names, items[0].cuts, strict=True)):
            both = list[Ends | None]()
            for j in (0, 1):
                if all(i.cuts[k].whole[j] for i in items):
                    both.append(None)
                    continue
                numbers = zip(*(i.cuts[k].ends[2 * j :][:2] for i in items), strict=True)
                low, high = (self._number(items, cut.role, x) for x in numbers)
                if low is None or high is None:
                    return None
                both.append((low, high))
            made.append((cut.role, Part(name, lag, *both)))
        return tuple(made)

    def _number(self, items: list[Record], role: Role, values: tuple[int, ...]) -> Expr | None:
        """Fits a number of each item by an expression, or by a table of ranks, or None."""
        if len({*values}) == 1:
            return Expr(values[0])
        who = [i.rank if i.dst is None or role != "into" else i.dst for i in items]
        few = self.where[[rank for its in who for rank in (its[0], its[-1])]]
        e = plane(few[:, :-1], np.repeat([i.t for i in items], 2), np.repeat(values, 2))
        each = zip(items, who, values, strict=True)
        if e and all((e.at(i.t, self.where[its]) == x).all() for i, its, x in each):
            return e
        table = _of_ranks(np.zeros(self.ranks, np.intp), who, values)
        strides = tuple(int(np.prod(self.mesh[i + 1 :])) for i in range(len(self.mesh)))
        return Expr(0, 0, strides, 0, table) if table else None

    def say(self, clusters: list[Cluster], receiver: bool) -> list[Statement] | None:
        """Returns the statements of clusters; None if their ranks fit no guard."""
        said = list[Statement]()
        for cluster in clusters:
            pieces = self._pieces(cluster, receiver) or []
            if not pieces:
                return None
            said += [self._statement(cluster, piece, receiver) for piece in pieces]
        return said

    def _pieces(self, cluster: Cluster, receiver: bool) -> list[Piece] | None:
        run, items = cluster.run, cluster.items
        on = np.zeros((len(run), self.ranks), np.bool_)
        many = 0
        for item in items:
            who = item.dst if receiver else item.rank
            assert who is not None
            on[item.t - run[0], who] = True
            many += len(who)
        if on.sum() < many:
            return None  # two rows of a rank in a step
        for item in items if cluster.tiles else ():
            assert item.meeting
            on[item.t - run[0], item.meeting.idle] = True
        ways = {i.t: i.way for i in items}
        numbers = list[tuple[Ints, int]]()
        if (way := items[0].way) and way.by:
            table = np.array([w.by for t in run if (w := ways[t])])
            numbers = [(table[:, a], n) for a, n in enumerate(way.sizes(self.mesh))]
        if way and way.kind == "root":
            sums = TENSORS[self.tensors[0]].accumulates
            for item in items:  # the root takes part, without a message
                root = item.dst if sums else item.rank
                on[item.t - run[0], root] = True
        return Sets(run[0], on, self.mesh, numbers).pieces()

    def _statement(self, cluster: Cluster, piece: Piece, receiver: bool) -> Statement:
        guard = piece.guard if piece.guard == Guard() else replace(piece.guard, receiver=receiver)
        when = When(piece.first, piece.last, guard=guard)
        parts = defaultdict[Role, tuple[Part, ...]](tuple)
        for role, part in cluster.parts:
            parts[role] += (part,)
        if not self.tensors:
            return Attend(when, parts["q"], parts["kv"], KINDS[cluster.kind])
        hop = self._hop(cluster.items[0].way, piece)
        return Send(when, self.name, self.tensors, parts["send"], hop, *parts["into"])

    def _hop(self, way: Way | None, piece: Piece) -> Hop:
        assert way is not None
        if way.kind == "root":
            return Root(way.axis, piece.fits[0])
        fits = zip(piece.fits, self.mesh, strict=True)
        return Shift(tuple(replace(e, constant=_near(e.constant, n)) for e, n in fits))


def _during(items: list[Record], run: list[int]) -> list[Record]:
    return [i for i in items if run[0] <= i.t <= run[-1]]


def _near(x: int, n: int) -> int:
    """Returns the smallest shift, forward if both ways are equally long."""
    return (x + (n - 1) // 2) % n - (n - 1) // 2


def _of_ranks(table: Ints, ranks: Sequence[Ints], values: Sequence[int | Ints]) -> tuple[int, ...]:
    """Returns a table with the number of each rank; empty if a rank has several numbers."""
    for its, value in zip(ranks, values, strict=True):
        table[its] = value
    alike = ((table[its] == value).all() for its, value in zip(ranks, values, strict=True))
    return tuple(table.tolist()) if all(alike) else ()
