"""One walk over the rows of a plan: where each copy came from, and what each row does with it.

Records are rows of one step that are alike but for the rank.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from planner.ir import TENSORS, Plan
from planner.loops.exchanges import Exchanges
from planner.loops.form import Ints
from planner.loops.kinds import Kinds
from planner.loops.places import Cut, Read, Role
from planner.loops.transfers import Transfers, Way, find_mesh
from planner.loops.values import Messages, Rectangles, Rows

Asked = tuple[Role, str, Ints, Ints]  # side, rank [n], blocks [n, w]
Key = tuple[str, tuple[str, ...]]  # of a send the name that it makes, and tensors


@dataclass(frozen=True, slots=True)
class Record:
    """The slices `cuts` of values that each `rank` [n] reads in step t, to attend or to send.

    Of an attend `kind` is the mask's; of a send `way` leads to the receivers `dst`.
    """

    t: int
    key: Key
    rank: Ints
    cuts: tuple[Cut, ...]
    kind: int = 0
    way: Way | None = None
    dst: Ints | None = None


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
        reads: list[Asked] = [("send", of.side, src, blocks), ("into", of.side, dst, blocks)]
        groups = self._read(*reads[: 1 + of.accumulates])
        groups.sort(key=lambda group: -len(group[0]))
        names = {cut.value.name for _, cuts in groups for cut in cuts if cut.role == "send"}
        name = self.transfers.name(t, tensors, way, names, used)
        for at, cuts in groups:
            if sum(cut.role == "into" for cut in cuts) > 1:
                cuts = tuple(cut for cut in cuts if cut.role == "send")
            record = Record(t, (name, tensors), src[at], cuts, way=way, dst=dst[at])
            self.records.append(record)
        return name

    def _attends(self, t: int, rectangles: Rectangles) -> None:
        rank, q, kv = rectangles
        self.added += [("q", rank, q), ("kv", rank, kv)]
        kinds = self.kinds.of(q, kv)
        for at, cuts in self._read(("q", "q", rank, q), ("kv", "kv", rank, kv)):
            for kind in np.unique(kinds[at]).tolist():
                rows = at[kinds[at] == kind]
                self.records.append(Record(t, ("", ()), rank[rows], cuts, kind))

    def _read(self, *asked: Asked) -> list[Read]:
        """Rows that read the same in each of some ways: role, side, rank and blocks."""
        made: list[Read] = [(np.arange(len(asked[0][2])), ())]
        for role, side, rank, blocks in asked:
            made = [
                (rows[at], (*before, *cuts))
                for rows, before in made
                for at, cuts in self.values[side].read(role, rank[rows], blocks[rows])
            ]
        return made
