"""Statements: converts records of many steps that read the same names to the fewest statements.

Clusters records by kind and slices, or fits slices as expressions of rank and step; then fits the
ranks of each cluster as guards. Returns the cheapest result.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from ringloom.planner.analysis.kinds import KINDS, TILES
from ringloom.planner.ir import TENSORS
from ringloom.planner.loops.fitting import Piece, Sets, consecutive_runs, fit_plane
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
MOST_CLUSTERS = 64  # more clusters do not form a loop


def total_cost(statements: Iterable[Statement]) -> float:
    """Sums the costs of statements: their tables, bounds, moving slices and tile kinds."""
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
        total += (0.1 if sums else 0.01) * (guard.receiver == sums)  # prefers the rank that attends
    return total


@dataclass(frozen=True)
class Cluster:
    """Records of consecutive steps that one statement expresses, if a guard fits their ranks."""

    run: list[int]
    items: list[Record]
    parts: Parts
    tiles: bool = False  # True: the kind is only "tiles"

    @property
    def kind(self) -> int:
        """The most specific kind of all items."""
        kinds = {i.kind for i in self.items}
        return TILES if self.tiles or len(kinds) > 1 else kinds.pop()


class Clusters:
    """The ways to express the items of one group."""

    def __init__(
        self, group: Group, items: list[Record], mesh: tuple[int, ...], coordinates: Ints
    ) -> None:
        self.group, self.items, self.mesh, self.coordinates = group, items, mesh, coordinates
        self.name, self.tensors = group.key
        self.ranks = len(coordinates)

    def best(self) -> list[Statement]:
        """Returns the cheapest list of statements; empty if no statements fit."""
        by_cuts = defaultdict[object, list[Record]](list)
        for item in self.items:
            by_cuts[item.names, tuple(cut.role for cut in item.cuts)].append(item)
        options = [self._cheapest(items) for items in by_cuts.values()]
        best = [s for statements in options for s in statements] if all(options) else []
        if tiles := self._tile_clusters():
            candidates = filter(None, (best, self.make_statements(tiles, False)))
            best = min(candidates, key=total_cost, default=best)
        return best

    def _cheapest(self, items: list[Record]) -> list[Statement]:
        """Returns the cheapest statements of items with equal numbers of slices of equal values."""
        ends = (False, True)[: 1 + bool(self.tensors)]  # guards on senders, or on receivers
        kinds = (True, False)[: 1 + any(i.kind == TILES for i in items)]  # tiles cover all kinds
        best = list[Statement]()
        for by_kind, by_cuts in product(kinds, (True, False)):
            clusters = self.clusters(items, by_cuts, by_kind) or []
            if best and total_cost(best) <= len(clusters):
                continue  # each cluster costs at least one statement
            statements = (self.make_statements(clusters, receiver) for receiver in ends)
            best = min(filter(None, (best, *statements)), key=total_cost, default=best)
        return best

    def _tile_clusters(self) -> list[Cluster]:
        """Returns a cluster per run of steps whose items cover all allowed pairs."""
        cut = any(i.kind == TILES for i in self.items)
        if not cut or not all(i.meeting and i.meeting.is_complete for i in self.items):
            return []
        parts = tuple((role, Part(name, lag)) for role, name, lag in self.group.uses)
        steps = {i.t for i in self.items}
        return [
            Cluster(run, _items_in(self.items, run), parts, True)
            for run in consecutive_runs([*steps])
        ]

    def clusters(self, items: list[Record], by_cuts: bool, by_kind: bool) -> list[Cluster] | None:
        """Returns a cluster per run of steps, and per slices (`by_cuts`) and kind (`by_kind`)."""
        groups = defaultdict[tuple[Slices, int], list[Record]](list)
        for item in items:
            slices = tuple(constant(cut) for cut in item.cuts) if by_cuts else ()
            groups[slices, item.kind if by_kind else TILES].append(item)
        clusters = list[Cluster]()
        for group in groups.values() if len(groups) <= MOST_CLUSTERS else ():
            for run in consecutive_runs([*{i.t for i in group}]):
                part = _items_in(group, run)
                if (parts := self._fit_parts(part)) is None:
                    return None
                clusters.append(Cluster(run, part, parts))
        return clusters or None

    def _fit_parts(self, items: list[Record]) -> Parts | None:
        """Returns the parts that all items read, with slices as expressions, or None."""
        fitted = list[tuple[Role, Part]]()
        for k, ((name, lag), cut) in enumerate(zip(items[0].names, items[0].cuts, strict=True)):
            pair = list[Ends | None]()
            for j in (0, 1):
                if all(i.cuts[k].is_whole[j] for i in items):
                    pair.append(None)
                    continue
                numbers = zip(*(i.cuts[k].ends[2 * j :][:2] for i in items), strict=True)
                low, high = (self._fit_number(items, cut.role, x) for x in numbers)
                if low is None or high is None:
                    return None
                pair.append((low, high))
            fitted.append((cut.role, Part(name, lag, *pair)))
        return tuple(fitted)

    def _fit_number(self, items: list[Record], role: Role, values: tuple[int, ...]) -> Expr | None:
        """Fits one number per item as an expression or a table of ranks; None if neither fits."""
        if len({*values}) == 1:
            return Expr(values[0])
        ranks_of_items = [i.rank if i.dst is None or role != "into" else i.dst for i in items]
        samples = self.coordinates[
            [rank for ranks in ranks_of_items for rank in (ranks[0], ranks[-1])]
        ]
        e = fit_plane(samples[:, :-1], np.repeat([i.t for i in items], 2), np.repeat(values, 2))
        options = zip(items, ranks_of_items, values, strict=True)
        if e and all((e.at(i.t, self.coordinates[ranks]) == x).all() for i, ranks, x in options):
            return e
        table = _table_of_ranks(np.zeros(self.ranks, np.intp), ranks_of_items, values)
        strides = tuple(int(np.prod(self.mesh[i + 1 :])) for i in range(len(self.mesh)))
        return Expr(0, 0, strides, 0, table) if table else None

    def make_statements(self, clusters: list[Cluster], receiver: bool) -> list[Statement] | None:
        """Returns the statements of clusters; None if their ranks fit no guard."""
        statements = list[Statement]()
        for cluster in clusters:
            pieces = self._pieces(cluster, receiver) or []
            if not pieces:
                return None
            statements += [self._statement(cluster, piece, receiver) for piece in pieces]
        return statements

    def _pieces(self, cluster: Cluster, receiver: bool) -> list[Piece] | None:
        run, items = cluster.run, cluster.items
        takes_part = np.zeros((len(run), self.ranks), np.bool_)
        rows = 0
        for item in items:
            ranks = item.dst if receiver else item.rank
            assert ranks is not None
            takes_part[item.t - run[0], ranks] = True
            rows += len(ranks)
        if takes_part.sum() < rows:
            return None  # a rank has two rows in a step
        for item in items if cluster.tiles else ():
            assert item.meeting
            takes_part[item.t - run[0], item.meeting.idle] = True
        ways = {i.t: i.way for i in items}
        numbers = list[tuple[Ints, int]]()
        if (way := items[0].way) and way.by:
            table = np.array([w.by for t in run if (w := ways[t])])
            numbers = [(table[:, a], n) for a, n in enumerate(way.sizes(self.mesh))]
        if way and way.kind == "root":
            sums = TENSORS[self.tensors[0]].accumulates
            for item in items:  # the root takes part, without a message
                root = item.dst if sums else item.rank
                takes_part[item.t - run[0], root] = True
        return Sets(run[0], takes_part, self.mesh, numbers).pieces()

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
        return Shift(tuple(replace(e, constant=_shortest_shift(e.constant, n)) for e, n in fits))


def _items_in(items: list[Record], run: list[int]) -> list[Record]:
    return [i for i in items if run[0] <= i.t <= run[-1]]


def _shortest_shift(x: int, n: int) -> int:
    """Returns the shortest equivalent of a shift modulo n, positive if both are equally long."""
    return (x + (n - 1) // 2) % n - (n - 1) // 2


def _table_of_ranks(
    table: Ints, groups: Sequence[Ints], values: Sequence[int | Ints]
) -> tuple[int, ...]:
    """Returns a table with the value of each group of ranks; empty if a rank has several values."""
    for ranks, value in zip(groups, values, strict=True):
        table[ranks] = value
    fits = ((table[ranks] == value).all() for ranks, value in zip(groups, values, strict=True))
    return tuple(table.tolist()) if all(fits) else ()
