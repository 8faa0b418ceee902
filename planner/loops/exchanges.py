"""Exchanges: all ranks of an axis send to all others of it in one step, everything or shares.

gather       everybody's part to everybody          all-to-all   to each its share of the part
return       sums back over the messages of either  scatter      shares of sums, as they lie

What each sends is said here once. `Exchanges` finds one among the messages of a step by making
those that it would send, and comparing.
"""

from collections.abc import Iterator

import numpy as np

from planner.columns import flat
from planner.ir import TENSORS, Plan
from planner.loops.fitting import line
from planner.loops.form import (
    HELD,
    Ends,
    Exchange,
    Expr,
    Ints,
    Part,
    Return,
    When,
)
from planner.loops.places import Places, Value
from planner.loops.values import Bools, Copies, Messages, Rows, codes, joined, sliced
from planner.partitions import Side


def shared(
    table: Ints, share: Part, t: int, mesh: tuple[int, ...], where: Ints, axis: int
) -> list[Messages]:
    """The messages of an exchange, first those of ranks to themselves."""
    ranks, made = np.arange(len(where)), list[Messages]()
    for hop in range(mesh[axis]):
        to = where[:, :-1].copy()
        to[:, axis] = (to[:, axis] + hop) % mesh[axis]
        dst = np.ravel_multi_index(tuple(to.T), mesh)
        made.append((ranks, dst, sliced(table, share, t, where[dst])))
    return made


def scattered(table: Ints, side: Side, where: Ints, axis: int) -> Messages:
    """The messages of blocks of a table that others along an axis own to these."""
    ranks = np.arange(len(table))
    rank, block = flat(ranks, table.reshape(len(table), -1))
    owner = side.owners[block].astype(np.intp)
    apart = where[rank, :-1] != where[owner, :-1]
    on = apart[:, axis] & (apart.sum(axis=1) == 1)
    pair, block = rank[on] * len(table) + owner[on], block[on]
    order = np.argsort(pair, kind="stable")
    pairs, first, number = np.unique(pair[order], return_index=True, return_inverse=True)
    blocks = np.full((len(pairs), int(np.bincount(number).max(initial=0))), -1)
    blocks[number, np.arange(len(pair)) - first[number]] = block[order]
    return pairs // len(table), pairs % len(table), blocks


class Filled:
    """Where there are sums, of blocks that were attended or sums of which have come."""

    def __init__(self, plan: Plan) -> None:
        sides = (("q", plan.partition.q), ("kv", plan.partition.kv))
        self.bits = {s: np.zeros((plan.ranks, len(x) + 1), np.bool_) for s, x in sides}

    def note(self, side: str, rank: Ints, blocks: Ints) -> None:
        """From now on there are sums of these blocks [n, w] on the ranks [n]."""
        self.bits[side][rank[:, None], blocks] = True  # of block -1 in a column of its own

    def of(self, side: str, messages: Messages) -> Messages:
        """The messages that have sums to bring."""
        src, dst, blocks = messages
        on = (self.bits[side][src[:, None], blocks] & (blocks >= 0)).any(axis=1)
        return src[on], dst[on], blocks[on]


Hit = tuple[Exchange | Return, Bools, Copies | None]  # its messages, what each rank then has


class Exchanges:
    """The exchanges so far, and how to tell one from single messages."""

    def __init__(
        self, mesh: tuple[int, ...], where: Ints, rows: list[Rows], filled: Filled
    ) -> None:
        self.mesh, self.where, self.rows, self.filled = mesh, where, rows, filled
        self.ranks = len(where)
        self.brought: dict[str, tuple[str, int, Messages]] = {}  # side, axis, the way back by name

    def hit(
        self, t: int, tensors: tuple[str, ...], messages: Messages, places: Places
    ) -> Hit | None:
        """An exchange among the messages of a step; places are those of the inputs."""
        if TENSORS[tensors[0]].accumulates:
            for exchange, made in self._returns(t, tensors, places):
                rows = self._among(messages, made)
                if rows is not None:
                    return exchange, rows, None
            return None
        src, dst, blocks = messages
        if len(src) < self.ranks * (min(self.mesh) - 1):
            return None
        delta = (self.where[dst] - self.where[src])[:, :-1] % self.mesh
        along = np.count_nonzero(delta, axis=1) == 1
        for axis, n in enumerate(self.mesh):
            on = along & (delta[:, axis] > 0)
            if n > 1 and on.sum() == self.ranks * (n - 1):
                one = src[on], dst[on], blocks[on]
                if exchanged := self._along(t, tensors, one, axis, places):
                    return exchanged[0], on, exchanged[1]
        return None

    def _returns(
        self, t: int, tensors: tuple[str, ...], places: Places
    ) -> Iterator[tuple[Return, Messages]]:
        """Sums that go back over an exchange, or from what ranks hold to the owners."""
        side, when = TENSORS[tensors[0]].side, When(t, t)
        for name, (of, axis, back) in reversed(self.brought.items()):
            if of == side:
                yield Return(when, name, tensors, axis), self.filled.of(side, back)
        if held := places.named.get((HELD, None)):
            for axis in range(len(self.mesh)):
                made = scattered(held.table, places.side, self.where, axis)
                yield Return(when, HELD, tensors, axis), self.filled.of(side, made)

    def _among(self, messages: Messages, made: Messages) -> Bools | None:
        """The rows of messages that are those made; None if they are not all there."""
        src, dst, blocks = messages
        pairs = src.astype(np.intp) * self.ranks + dst
        rows = np.isin(pairs, made[0].astype(np.intp) * self.ranks + made[1])
        width = 1 + max(int(x.max(initial=0)) for x in (blocks, made[2]))
        picked = src[rows], dst[rows], blocks[rows]
        picked_codes, made_codes = (codes(x, self.ranks, width) for x in (picked, made))
        return rows if len(made[0]) and np.array_equal(picked_codes, made_codes) else None

    def _along(
        self, t: int, tensors: tuple[str, ...], messages: Messages, axis: int, places: Places
    ) -> tuple[Exchange, Copies] | None:
        """The exchange that as many messages along an axis are as it has."""
        src, dst, blocks = messages
        side, one = TENSORS[tensors[0]].side, int(places.of(src[0], blocks[0].max()))
        share = self._share(messages, axis, places) if one >= 0 else None
        if share is None:
            return None
        value = places.values[one]
        kept, *rest = shared(value.table, share, t, self.mesh, self.where, axis)
        made = joined(rest)
        if self._among(messages, made) is None or not self._read_as_one(
            t, side, places, value, messages, axis
        ):
            return None
        name, part = f"G{len(self.brought)}", Part(value.name, Expr(value.age(t)))
        self.brought[name] = side, axis, (made[1], made[0], made[2])
        exchange = Exchange(When(t, t), name, tensors, part, axis, share)
        return exchange, joined([kept[1:], (dst, blocks)])

    def _share(self, messages: Messages, axis: int, places: Places) -> Part | None:
        """The slices of a value that go to each receiver, by its coordinate, by a sample."""
        src, dst, blocks = messages
        to, at = np.unique(self.where[dst, axis], return_index=True)
        ends, whole = np.empty((len(at), 4), np.intp), np.empty((len(at), 2), np.bool_)
        for rows, cuts in places.read(src[at], blocks[at]):
            if len(cuts) > 1:
                return None
            ends[rows], whole[rows] = cuts[0].ends, cuts[0].whole
        if len(to) < self.mesh[axis]:
            return None
        said = list[Ends | None]()
        for i in (0, 1):
            low, high = (self._by_coordinate(ends[:, 2 * i + j], axis) for j in (0, 1))
            said.append(None if whole[:, i].all() else (low, high))
        return Part("to", Expr(), said[0], said[1])

    def _by_coordinate(self, values: Ints, axis: int) -> Expr:
        """A number for each coordinate of an axis, as a line or a table."""
        unit = tuple(int(a == axis) for a in range(len(self.mesh)))
        many, e = line(values)
        if many == len(values):
            return Expr(e.constant, 0, tuple(e.step * u for u in unit) if e.step else ())
        return Expr(0, 0, unit, 0, tuple(values.tolist()))

    def _read_as_one(
        self, t: int, side: str, places: Places, value: Value, messages: Messages, axis: int
    ) -> bool:
        """True if a later attend reads as one what came from several ranks."""
        src, dst, blocks = messages
        hops = (self.where[dst] - self.where[src])[:, axis] % self.mesh[axis]
        origin = np.full(places.code.shape, -1, np.int16)
        origin[flat(np.arange(self.ranks), value.table.reshape(self.ranks, -1))] = 0
        present = blocks >= 0
        origin[flat(dst, blocks)] = np.repeat(hops, present.sum(axis=1))
        for rows in self.rows[t + 1 :]:
            read = rows.attends[1 if side == "q" else 2]
            seen = origin[rows.attends[0][:, None], read]  # -1 for the block -1
            if ((seen >= 0) & (seen < seen.max(axis=1, keepdims=True))).any():
                return True
        return False
