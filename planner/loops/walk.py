"""A walk over the rows of a plan that records the source and the use of each copy.

A record has rows of one step that differ only in the rank. The walk splits rectangles of several
values by values of queries and keys, and drops dead blocks.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ringloom.planner.analysis.kinds import Kinds
from ringloom.planner.columns import distinct_values, take_rows
from ringloom.planner.ir import Attend, Move, Plan, Step
from ringloom.planner.loops.exchanges import Exchanges
from ringloom.planner.loops.form import Ints
from ringloom.planner.loops.meetings import Meeting, split_by_value
from ringloom.planner.loops.pieces import Groups
from ringloom.planner.loops.places import Cut, Request, group_reads
from ringloom.planner.loops.transfers import Transfers, Way, find_mesh

Key = tuple[str, tuple[str, ...]]  # of a send: the name of its value, and tensors


@dataclass(frozen=True, slots=True)
class Record:
    """The slices `cuts` of values that each `rank` [n] reads in step t, to attend or to send.

    For attends, `kind` is the kind under the mask, and `meeting` has all rectangles of the two
    values. For sends, `way` leads to the receivers `dst`.
    """

    t: int
    key: Key
    rank: Ints
    cuts: tuple[Cut, ...]
    kind: int = 0
    meeting: Meeting | None = None
    way: Way | None = None
    dst: Ints | None = None
    names: tuple[tuple[str, int], ...] = ()  # names and ages of the cuts, set by `Naming`


class Reading(Exchanges):
    """The records, exchanges and values of a plan, with messages split by `groups`."""

    def __init__(self, plan: Plan, groups: Groups) -> None:
        super().__init__(find_mesh(((m.src, m.dst) for _, m in plan.moves()), plan.ranks), plan)
        self.groups = groups
        self.records = list[Record]()
        self.kinds, self.transfers = Kinds(plan), Transfers(self.mesh)
        for t, step in enumerate(self.steps):
            self._step(t, step)
        self.join_repeats()

    def _step(self, t: int, step: Step) -> None:
        for move in step.moves:
            for way, group, part in self._split_messages(self.without_exchanges(t, move), t):
                name = self._record_messages(t, way, group, part)
                if move.accumulates:
                    self.new_sums.append((move.side, part.dst, part.blocks))
                else:
                    self.in_transit[name, move.side, t + 1].append((part.dst, part.blocks))
        for attend in step.attends:
            self._record_attend(t, attend)
        self.deliver()

    def _split_messages(self, move: Move, t: int) -> Iterator[tuple[Way, int, Move]]:
        """Splits messages by way and by the group of their blocks."""
        for way, part in self._split_by_way(t, move):
            if move.side not in self.groups:
                yield way, 0, part
                continue
            group = np.where(part.blocks < 0, -1, self.groups[move.side][part.blocks])
            for n in np.unique(group[group >= 0]).tolist():
                blocks = np.where(group == n, part.blocks, -1)
                yield way, n, Move(part.tensors, blocks, part.src, part.dst)

    def _split_by_way(self, t: int, move: Move) -> Iterator[tuple[Way, Move]]:
        """Splits messages by shift; more than two shifts have a root instead, if possible."""
        if not len(move):
            return
        mesh, coordinates = self.mesh, self.coordinates
        delta = (coordinates.take(move.dst, axis=0) - coordinates.take(move.src, axis=0))[
            :, :-1
        ] % mesh
        code: Ints = np.ravel_multi_index(tuple(delta.T), mesh)
        shifts = np.unique(code) if (code != code[0]).any() else code[:1]
        is_many = len(shifts) > 2 or self.transfers.uses_root(t, move.tensors)
        if is_many and (way := self._root_way(move)):
            yield way, move
        else:
            for shift in shifts:
                by = tuple(int(x) for x in np.unravel_index(shift, mesh))
                yield Way("shift", by), move.select(code == shift)

    def _root_way(self, move: Move) -> Way | None:
        """Returns the way of messages from one root (sums: to one root) along an axis, or None."""
        coordinates = self.coordinates[:, :-1]
        axes = np.flatnonzero((coordinates[move.src] != coordinates[move.dst]).any(axis=0))
        roots = coordinates[move.dst if move.accumulates else move.src, axes[0]]
        if len(axes) > 1 or (roots != roots[0]).any():
            return None
        return Way("root", (int(roots[0]),), int(axes[0]))

    def _record_messages(self, t: int, way: Way, group: int, move: Move) -> str:
        """Records messages and returns their name.

        Also records the value that sums are added to, if there is a single one.
        """
        rank, blocks, values = move.src, move.blocks, self.values[move.side]
        reads: list[Request] = [("send", values, rank, blocks), ("into", values, move.dst, blocks)]
        groups = group_reads(*reads[: 1 + move.accumulates])
        groups.sort(key=lambda group: -len(group[0]))
        names = {cut.value.name for _, cuts in groups for cut in cuts if cut.role == "send"}
        name = self.transfers.name(t, move.tensors, group, way, names)
        for rows, cuts in groups:
            if sum(cut.role == "into" for cut in cuts) > 1:
                cuts = tuple(cut for cut in cuts if cut.role == "send")
            key, src, dst = (name, move.tensors), take_rows(rank, rows), take_rows(move.dst, rows)
            self.records.append(Record(t, key, src, cuts, way=way, dst=dst))
        return name

    def _record_attend(self, t: int, attend: Attend) -> None:
        """Records the rectangles of a step."""
        q, kv = self.values["q"], self.values["kv"]
        q_of, kv_of = q.numbers(attend.rank, attend.q), kv.numbers(attend.rank, attend.kv)
        for a, b, part in split_by_value(self.kinds.tiles, attend, q_of, kv_of):
            self._record_meeting(t, Meeting(self.kinds.tiles, q.values[a], kv.values[b], part))

    def _record_meeting(self, t: int, meeting: Meeting) -> None:
        """Records the rectangles of two values."""
        rank, q, kv = meeting.attend.rank, meeting.attend.q, meeting.attend.kv
        self.new_sums += [("q", rank, q), ("kv", rank, kv)]
        kinds, values = self.kinds.of(meeting.attend), self.values
        for positions, cuts in group_reads(
            ("q", values["q"], rank, q), ("kv", values["kv"], rank, kv)
        ):
            for kind in distinct_values(kinds[positions]).tolist():
                rows = positions[kinds[positions] == kind]
                record = Record(t, ("", ()), take_rows(rank, rows), cuts, kind, meeting)
                self.records.append(record)
