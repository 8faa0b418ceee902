"""One walk over the rows of a plan: where each copy came from, and what each row does with it.

Records are rows of one step that are alike but for the rank, and perhaps their slices.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from planner.ir import TENSORS, Plan
from planner.loops.exchanges import Exchanges
from planner.loops.form import Ints
from planner.loops.kinds import Kinds
from planner.loops.places import Cut
from planner.loops.transfers import Transfers, Way, find_mesh
from planner.loops.values import Messages, Rectangles, Rows

Key = tuple[str, str, tuple[str, ...]]  # what it does, the name it makes, tensors


@dataclass(frozen=True, slots=True)
class Record:
    """The blocks that `rank` [n] reads or sends in step t, as slices of values.

    `way` leads to the receivers `dst`; with `into` the last cut is what they add sums to.
    """

    t: int
    key: Key
    rank: Ints
    cuts: tuple[Cut, ...]
    queries: int = 0  # how many of the cuts an attend has for queries
    kind: int = 0
    way: Way | None = None
    dst: Ints | None = None
    into: bool = False

    def take(self, rows: Ints) -> "Record":
        """The same for some of the rows."""
        return replace(
            self,
            rank=self.rank[rows],
            cuts=tuple(cut.take(rows) for cut in self.cuts),
            dst=None if self.dst is None else self.dst[rows],
        )


class Reading(Exchanges):
    """The records, exchanges and values of a plan."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(find_mesh(((m.src, m.dst) for _, m in plan.moves()), plan.ranks), plan)
        self.records = list[Record]()
        self.kinds, self.transfers = Kinds(plan), Transfers(self.mesh)
        for t, row in enumerate(self.rows):
            self._step(t, row)
        self.repeated()

    def _step(self, t: int, rows: Rows) -> None:
        for tensors, messages in rows.moves.items():
            side, sums = TENSORS[tensors[0]].side, TENSORS[tensors[0]].accumulates
            used = set[str]()
            for way, part in self._ways(t, tensors, self.apart(t, tensors, messages)):
                name = self._sent(t, tensors, way, part, used)
                if sums:
                    self.added.append((side, *part[1:]))
                else:
                    self.coming[name, side, t + 1].append(part[1:])
        if len(rows.attends[0]):
            self._attends(t, rows.attends)
        self.arrive()

    def _ways(
        self, t: int, tensors: tuple[str, ...], messages: Messages
    ) -> Iterator[tuple[Way, Messages]]:
        """Messages by their shift; those of more than two shifts from, to a root or by a table."""
        src, dst, blocks = messages
        if not len(src):
            return
        mesh, where = self.mesh, self.coordinates
        code: Ints = (dst - src) % mesh[0]
        if len(mesh) > 1:
            delta = (where[dst] - where[src])[:, :-1] % mesh
            code = np.ravel_multi_index(tuple(delta.T), mesh)
        shifts = np.unique(code) if (code != code[0]).any() else code[:1]
        many = len(shifts) > 2 or self.transfers.rooted(t, tensors)
        if many and (way := self._rooted(src, dst, TENSORS[tensors[0]].accumulates)):
            yield way, messages
            return
        if len(shifts) > 2 and len(np.unique(src)) == len(np.unique(dst)) == len(src):
            yield Way("table"), messages
            return
        for shift in shifts:
            on = code == shift
            way = Way("shift", tuple(int(x) for x in np.unravel_index(shift, mesh)))
            yield way, (messages if len(shifts) == 1 else (src[on], dst[on], blocks[on]))

    def _rooted(self, src: Ints, dst: Ints, sums: bool) -> Way | None:
        """All messages along one axis, from one coordinate of it, or for sums to one."""
        where = self.coordinates[:, :-1]
        axes = np.flatnonzero((where[src] != where[dst]).any(axis=0))
        roots = where[dst if sums else src, axes[0]]
        if len(axes) > 1 or (roots != roots[0]).any():
            return None
        return Way("root", (int(roots[0]),), int(axes[0]))

    def _sent(
        self, t: int, tensors: tuple[str, ...], way: Way, part: Messages, used: set[str]
    ) -> str:
        """Note the records of these messages, and return their name.

        Of sums with what they are added into, unless that has no one name.
        """
        (src, dst, blocks), of = part, TENSORS[tensors[0]]
        ends = (src, dst)[: 1 + of.accumulates]
        groups = self._read(*((of.side, rank, blocks) for rank in ends))
        groups.sort(key=lambda group: -len(group[0]))
        names = {cut.value.name for _, (cuts, *_) in groups for cut in cuts}
        name = self.transfers.name(t, tensors, way, names, used)
        for at, (cuts, *into) in groups:
            one = tuple(cut for cuts in into for cut in cuts if len(cuts) == 1)
            key = "send", name, tensors
            record = Record(t, key, src[at], (*cuts, *one), 0, 0, way, dst[at], bool(one))
            self.records.append(record)
        return name

    def _attends(self, t: int, rectangles: Rectangles) -> None:
        rank, q, kv = rectangles
        self.added += [("q", rank, q), ("kv", rank, kv)]
        kinds = self.kinds.of(q, kv)
        for at, (queries, keys) in self._read(("q", rank, q), ("kv", rank, kv)):
            every = Record(t, ("attend", "", ()), rank[at], (*queries, *keys), len(queries))
            of = kinds[at]
            for kind in np.unique(of).tolist():
                self.records.append(replace(every.take(np.flatnonzero(of == kind)), kind=kind))

    def _read(self, *reads: tuple[str, Ints, Ints]) -> list[tuple[Ints, list[tuple[Cut, ...]]]]:
        """Rows that read the same values in each of some ways, side, rank and blocks, and what."""
        made = [(np.arange(len(reads[0][1])), list[tuple[Cut, ...]]())]
        for side, rank, blocks in reads:
            made = [
                (rows[at], [*(tuple(c.take(at) for c in cuts) for cuts in before), cuts])
                for rows, before in made
                for at, cuts in self.values[side].read(rank[rows], blocks[rows])
            ]
        return made
