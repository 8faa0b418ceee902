"""Exchanges: all ranks of an axis send to all others of it in one step, everything or shares.

gather       everybody's part to everybody          all-to-all   to each its share of the part
return       sums back over the messages of either  scatter      shares of sums, as they lie
"""

from dataclasses import dataclass

import numpy as np

from planner.ir import TENSORS
from planner.loops.columns import Messages, Rows
from planner.loops.fitting import line
from planner.loops.form import (
    AllToAll,
    Ends,
    Expr,
    Gather,
    Ints,
    Part,
    Return,
    Scatter,
    When,
)
from planner.loops.places import Bools, Places, Value
from planner.loops.values import Pairs, alike_along, flat, to_owners, within

Exchange = Gather | AllToAll | Return | Scatter
WHOLE = Part("to")  # the share of a receiver that gets everything


@dataclass(frozen=True)
class Sent:
    """The messages of an exchange, one number for each (src, dst, block), ascending."""

    name: str
    side: str
    axis: int
    codes: Ints


@dataclass(frozen=True)
class Hit:
    """An exchange: its statement, the rows that are its messages, what each rank then has."""

    statement: Exchange
    rows: Bools
    pairs: Pairs | None = None

    @property
    def name(self) -> str:
        """The name of what it brings, "" if that goes home."""
        return self.statement.name if isinstance(self.statement, Gather | AllToAll) else ""


class Exchanges:
    """The exchanges so far, and how to tell one from single messages."""

    def __init__(self, mesh: tuple[int, ...], coordinates: Ints, rows: list[Rows]) -> None:
        self.mesh, self.coordinates, self.rows = mesh, coordinates, rows
        self.ranks = len(coordinates)
        self.sent: list[Sent] = []

    def hit(
        self, t: int, tensors: tuple[str, ...], messages: Messages, places: Places
    ) -> Hit | None:
        """An exchange among the messages of a step; places are those of the inputs."""
        if TENSORS[tensors[0]].accumulates:
            return self._home(t, tensors, messages, places)
        src, dst, blocks = messages
        if len(src) < self.ranks * (min(self.mesh) - 1):
            return None
        delta = (self.coordinates[dst] - self.coordinates[src])[:, :-1] % self.mesh
        along = np.count_nonzero(delta, axis=1) == 1
        for axis, n in enumerate(self.mesh):
            on = along & (delta[:, axis] > 0)
            if not on.any() or on.sum() != self.ranks * (n - 1):
                continue
            if len(np.unique(src[on].astype(np.intp) * self.ranks + dst[on])) == on.sum():
                one = src[on], dst[on], blocks[on]
                if hit := self._along(t, tensors, one, axis, places):
                    return Hit(hit[0], on, hit[1])
        return None

    def _home(
        self, t: int, tensors: tuple[str, ...], messages: Messages, places: Places
    ) -> Hit | None:
        """Sums that go back over an exchange, or from values that stay to the owners."""
        side = TENSORS[tensors[0]].side
        backs = [s for s in reversed(self.sent) if s.side == side]
        stays = [places.values[i] for i in places.stays]
        if not backs and not stays:
            return None
        filled = self._filled(t, side, len(places.side))
        for sent in backs:
            pair, block = np.divmod(sent.codes, len(places.side))
            back = pair % self.ranks * self.ranks + pair // self.ranks
            rows = self._are(back, block, messages, filled)
            if rows is not None:
                return Hit(Return(When(t, t), tensors, sent.name, sent.axis), rows)
        for value in stays:
            for axis in range(len(self.mesh)):
                pairs = to_owners(value.table, places.side.homes, self.coordinates, axis)
                rows = self._are(*pairs, messages, filled)
                if rows is not None:
                    same = alike_along(value.table, self.mesh, axis)
                    part = Part(value.name)
                    return Hit(Scatter(When(t, t), tensors, part, axis, same), rows)
        return None

    def _filled(self, t: int, side: str, blocks: int) -> Bools:
        """The sums that there are before a step: bool [ranks, blocks]."""
        filled = np.zeros((self.ranks, blocks), np.bool_)
        for rows in self.rows[:t]:
            for tensors, (_, dst, sent) in rows.moves.items():
                if TENSORS[tensors[0]].accumulates and TENSORS[tensors[0]].side == side:
                    filled[flat(dst, sent)] = True
            if rows.attends:
                filled[flat(rows.attends[0], rows.attends[1 if side == "q" else 2])] = True
        return filled

    def _are(self, pair: Ints, block: Ints, messages: Messages, filled: Bools) -> Bools | None:
        """The rows that are these messages, without those that have no sums; None if not."""
        live = np.unique(pair[filled[pair // self.ranks, block]])
        src, dst, blocks = messages
        rows = np.isin(src.astype(np.int64) * self.ranks + dst, live)
        here, many = blocks[rows] >= 0, filled.shape[1]
        made = np.repeat(src[rows].astype(np.int64) * self.ranks + dst[rows], here.sum(axis=1))
        made = np.sort(made * many + blocks[rows][here])
        on = np.isin(pair, live)
        alike = len(live) and np.array_equal(made, np.sort(pair[on] * many + block[on]))
        return rows if alike else None

    def _codes(self, messages: Messages, places: Places) -> Ints:
        src, dst, blocks = messages
        there = blocks >= 0
        pair = np.repeat(src.astype(np.int64) * self.ranks + dst, there.sum(axis=1))
        return np.sort(pair * len(places.side) + blocks[there])

    def _along(
        self, t: int, tensors: tuple[str, ...], messages: Messages, axis: int, places: Places
    ) -> tuple[Exchange, Pairs] | None:
        """The exchange that complete messages along an axis are."""
        src, dst, blocks = messages
        side = TENSORS[tensors[0]].side
        values = np.unique(places.of(*flat(src, blocks)))
        if len(values) > 1 or values[0] < 0:
            return None
        value = places.values[int(values[0])]
        share = self._share(messages, axis, places)
        if share is None:
            return None
        part = Part(value.name, Expr(0 if value.born is None else t - value.born))
        hops = (self.coordinates[dst] - self.coordinates[src])[:, axis] % self.mesh[axis]
        if not self._joint(t, side, places, value, messages, hops):
            return None
        name = f"G{len(self.sent)}"
        self.sent.append(Sent(name, side, axis, self._codes(messages, places)))
        kept = flat(np.arange(self.ranks), self._kept(value, share))
        there = flat(dst, blocks)
        pairs = np.concatenate([kept[0], there[0]]), np.concatenate([kept[1], there[1]])
        if share == WHOLE:
            return Gather(When(t, t), name, tensors, part, axis), pairs
        return AllToAll(When(t, t), name, tensors, part, axis, share), pairs

    def _share(self, messages: Messages, axis: int, places: Places) -> Part | None:
        """The slices of a value that go to each receiver, by its coordinate; None if not so."""
        src, dst, blocks = messages
        slices = places.read(src, blocks)
        ends, whole = (np.empty((len(src), k), np.intp) for k in (4, 2))
        for s in slices:
            if len(s.values) > 1:
                return None
            ends[s.rows], whole[s.rows] = s.ends, s.whole
        if whole.all():
            return WHOLE
        to, n = self.coordinates[dst, axis], self.mesh[axis]
        slots = np.stack([ends[to == x][0] for x in range(n)])
        if (ends != slots[to]).any():
            return None
        said = list[Ends | None]()
        for i in (0, 1):
            low, high = (self._by_coordinate(slots[:, 2 * i + j], axis) for j in (0, 1))
            said.append(None if whole[:, i].all() else (low, high))
        return Part("to", Expr(), said[0], said[1])

    def _by_coordinate(self, values: Ints, axis: int) -> Expr:
        """A number for each coordinate of an axis, as a line or a table."""
        unit = tuple(int(a == axis) for a in range(len(self.mesh)))
        many, e = line(values)
        if many == len(values):
            return Expr(e.constant, 0, tuple(e.step * u for u in unit) if e.step else ())
        return Expr(0, 0, unit, 0, tuple(values.tolist()))

    def _kept(self, value: Value, share: Part) -> Ints:
        """The rank's own share of what it sends: blocks [ranks, w]."""
        pieces, heads = (
            None if e is None else (e[0].at(0, self.coordinates), e[1].at(0, self.coordinates))
            for e in (share.pieces, share.heads)
        )
        return within(value.table, pieces, heads)

    def _joint(
        self, t: int, side: str, places: Places, value: Value, messages: Messages, hops: Ints
    ) -> bool:
        """True if a later attend reads as one what came from several ranks."""
        _, dst, blocks = messages
        origin = np.full(places.code.shape, -1, np.int16)
        origin[flat(np.arange(self.ranks), value.table.reshape(self.ranks, -1))] = 0
        there = blocks >= 0
        origin[np.repeat(dst, there.sum(axis=1)), blocks[there]] = np.repeat(
            hops, there.sum(axis=1)
        )
        for rows in self.rows[t + 1 :]:
            if rows.attends:
                read = rows.attends[1 if side == "q" else 2]
                seen = np.where(read >= 0, origin[rows.attends[0][:, None], read], -1)
                least = np.where(seen >= 0, seen, np.iinfo(np.int16).max).min(axis=1)
                if ((seen.max(axis=1) > 0) & (least < seen.max(axis=1))).any():
                    return True
        return False
