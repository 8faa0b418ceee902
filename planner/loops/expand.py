"""expand(loops, plan)   what the loop form means: the rows of each step."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from planner.errors import PlanError
from planner.ir import TENSORS, Plan
from planner.loops.columns import Messages, Rectangles, joined
from planner.loops.form import (
    HELD,
    OWN,
    AllToAll,
    Attend,
    FromRoot,
    Gather,
    Ints,
    Loops,
    Part,
    Return,
    Scatter,
    Send,
    Shift,
    Start,
    Table,
    ToRoot,
)
from planner.loops.kinds import KINDS
from planner.loops.values import (
    Pairs,
    alike_along,
    flat,
    held,
    owned,
    pack,
    to_owners,
    within,
)
from planner.partitions import Partition


@dataclass(frozen=True, slots=True)
class Expanded:
    """One step: messages by tensors, rectangles, and the kind (of KINDS) said of each of these."""

    moves: dict[tuple[str, ...], Messages]
    attends: Rectangles | None
    kinds: Ints


@dataclass
class Expansion:
    """The values of all names as the steps go by.

    `stay` holds them by name and side, `aged` by name, side and the first step they are read in;
    `brought` the messages of each exchange, `sums` the values that sums went further than.
    """

    loops: Loops
    partition: Partition
    held: dict[str, Ints] = field(default_factory=dict)  # by side
    stay: dict[tuple[str, str], Ints] = field(default_factory=dict)
    aged: dict[tuple[str, str, int], Ints] = field(default_factory=dict)
    sums: dict[tuple[str, str, int], Ints] = field(default_factory=dict)
    brought: dict[str, list[Messages]] = field(default_factory=dict)
    coming: dict[tuple[str, str], list[Pairs]] = field(default_factory=dict)
    following: dict[tuple[str, str, int], list[Pairs]] = field(default_factory=dict)
    filled: dict[str, NDArray[np.bool_]] = field(default_factory=dict)  # [ranks, blocks] by side
    attended: list[tuple[str, Pairs]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.coordinates = self.loops.coordinates()
        self.ranks = len(self.coordinates)
        self.everyone = np.arange(self.ranks)
        for side in ("q", "kv"):
            self.stay[OWN, side] = owned(self.ranks, self.partition.side(side))
            if any(isinstance(s, Return | Scatter) for s in self.loops.statements):
                size = self.ranks, len(self.partition.side(side))
                self.filled[side] = np.zeros(size, np.bool_)
            if side in self.held:
                self._take(side, *flat(self.everyone, self.held[side].reshape(self.ranks, -1)))
                self.stay[HELD, side] = self.held[side]

    def blocks(
        self,
        part: Part,
        side: str,
        t: int,
        who: Ints,
        seen: Ints | None = None,
        sums: bool = False,
    ) -> Ints:
        """The blocks [n, w] of a part on ranks `who`, its slices as ranks `seen` say them."""
        table = self.stay.get((part.value, side))
        if table is None:
            key = part.value, side, t - int(part.lag.at(t, self.coordinates[:1])[0])
            table = self.sums.get(key) if sums else None
            table = self.aged.get(key) if table is None else table
        if table is None:
            raise PlanError(f"step {t}: {part.value} is read, but there is none of that age")
        at = self.coordinates.take(who if seen is None else seen, axis=0)
        pieces, heads = (
            None if ends is None else (ends[0].at(t, at), ends[1].at(t, at))
            for ends in (part.pieces, part.heads)
        )
        return within(table.take(who, axis=0), pieces, heads)

    def start(self, s: Start, t: int) -> None:
        """A value gets another name."""
        side, sums = TENSORS[s.tensors[0]].side, TENSORS[s.tensors[0]].accumulates
        blocks = self.blocks(s.part, side, t, self.everyone, sums=sums)
        self.aged[s.name, side, t] = self._packed(side, flat(self.everyone, blocks))

    def _packed(self, side: str, pairs: Pairs) -> Ints:
        return pack(self.ranks, self.partition.side(side), *pairs)

    def send(self, s: Send, t: int) -> list[Messages]:
        """The messages of a send; what they bring has its name from the next step on."""
        side, sums = TENSORS[s.tensors[0]].side, TENSORS[s.tensors[0]].accumulates
        src, dst = self._pairs(s, t)
        sent = np.hstack([self.blocks(p, side, t, src, sums=sums) for p in s.parts])
        if sums and self.filled:
            self.attended.append((side, flat(dst, sent)))
        if s.into:
            self._add(s.into, side, t, dst, sent)
        self.coming.setdefault((s.name, side), []).append(flat(dst, sent))
        return [(src, dst, sent)]

    def _pairs(self, s: Send, t: int) -> Pairs:
        """Senders and receivers."""
        to = ends(self.loops, s, t, self.coordinates)
        asked = self.coordinates
        if s.when.guard.receiver and not isinstance(s.hop, FromRoot):
            asked = asked[to]
        who = np.flatnonzero(s.when.guard.at(t, asked) & (to >= 0) & (to != self.everyone))
        return (to[who], who) if isinstance(s.hop, FromRoot) else (who, to[who])

    def _add(self, into: Part, side: str, t: int, dst: Ints, sent: Ints) -> None:
        """Sums are for the very blocks of `into` on their receivers, or there is nothing of it."""
        here = self.blocks(into, side, t, dst, sums=True)
        width = max(here.shape[1], sent.shape[1])
        both = np.full((2, len(dst), width), -1, np.int32)
        both[0, :, : here.shape[1]], both[1, :, : sent.shape[1]] = here, sent
        both.sort(axis=2)
        new = (both[0] < 0).all(axis=1)
        if (both[0] != both[1])[~new].any():
            raise PlanError(f"step {t}: sums are added into {into.value}, but are for other blocks")
        if new.any():
            key = into.value, side, t - int(into.lag.at(t, self.coordinates[:1])[0])
            if key not in self.aged or into.pieces or into.heads:
                raise PlanError(f"step {t}: sums are added into {into.value}, which is not there")
            self.following.setdefault(key, []).append(flat(dst[new], sent[new]))

    def exchange(self, s: Gather | AllToAll, t: int) -> list[Messages]:
        """The messages of an exchange; what they bring stays, beside what each rank keeps."""
        side, n = TENSORS[s.tensors[0]].side, self.loops.mesh[s.axis]
        part = s.part
        if isinstance(s, AllToAll):
            part = replace(part, pieces=s.share.pieces, heads=s.share.heads)
        messages, pairs = list[Messages](), list[Pairs]()
        for hop in range(n):
            to = self.coordinates[:, :-1].copy()
            to[:, s.axis] = (to[:, s.axis] + hop) % n
            dst = np.ravel_multi_index(tuple(to.T), self.loops.mesh)
            sent = self.blocks(part, side, t, self.everyone, dst)
            pairs.append(flat(dst, sent))
            messages += [(self.everyone, dst, sent)] * bool(hop)
        self.brought[s.name] = messages
        self.coming.setdefault((s.name, side), []).extend(pairs)
        return messages

    def scatter(self, s: Scatter, t: int) -> list[Messages]:
        """The messages of sums to their owners along an axis, but for those with no sums."""
        side = TENSORS[s.tensors[0]].side
        table = self.blocks(s.part, side, t, self.everyone)
        if s.same != alike_along(table, self.loops.mesh, s.axis):
            raise PlanError(f"step {t}: ranks of a scatter have the same blocks, or have not")
        homes = self.partition.side(side).homes
        pair, block = to_owners(table, homes, self.coordinates, s.axis)
        order = np.argsort(pair, kind="stable")
        pair, block = pair[order], block[order]
        pairs, first = np.unique(pair, return_index=True)
        number = np.searchsorted(pairs, pair)
        blocks = np.full((len(pairs), int(np.bincount(number).max(initial=0))), -1)
        blocks[number, np.arange(len(pair)) - first[number]] = block
        return [self._with_sums(side, (pairs // self.ranks, pairs % self.ranks, blocks))]

    def returned(self, s: Return) -> list[Messages]:
        """The messages of an exchange, the other way round, but for those with no sums in them."""
        if s.exchange not in self.brought:
            raise PlanError(f"{s.exchange} is returned before it is there")
        side, sent = TENSORS[s.tensors[0]].side, self.brought[s.exchange]
        return [self._with_sums(side, (dst, src, blocks)) for src, dst, blocks in sent]

    def _with_sums(self, side: str, messages: Messages) -> Messages:
        src, dst, blocks = messages
        on = (self.filled[side][src[:, None], blocks] & (blocks >= 0)).any(axis=1)
        return src[on], dst[on], blocks[on]

    def arrive(self, t: int, exchanged: set[str]) -> None:
        """What was under way is there."""
        for key, more in self.following.items():
            table = self.sums.get(key, self.aged[key]).reshape(self.ranks, -1)
            pairs = [flat(self.everyone, table), *more]
            rank, block = (np.concatenate(x) for x in zip(*pairs, strict=True))
            self.sums[key] = self._packed(key[1], (rank, block))
        for (name, side), parts in self.coming.items():
            rank, block = (np.concatenate(x) for x in zip(*parts, strict=True))
            if name in exchanged:
                self._take(side, rank, block)
                self.stay[name, side] = self._packed(side, (rank, block))
            else:
                self.aged[name, side, t + 1] = self._packed(side, (rank, block))
        for side, (rank, block) in self.attended:
            self.filled[side][rank, block] = True
        self.coming, self.following, self.attended = {}, {}, []

    def _take(self, side: str, rank: Ints, block: Ints) -> None:
        """Of the values that stay, but for what ranks own, the last one to get a block has it."""
        taken = np.zeros((self.ranks, len(self.partition.side(side))), np.bool_)
        taken[rank, block] = True
        for other in [o for o in self.stay if o[1] == side and o[0] != OWN]:
            r, b = flat(self.everyone, self.stay[other].reshape(self.ranks, -1))
            if taken[r, b].any():
                self.stay[other] = self._packed(side, (r[~taken[r, b]], b[~taken[r, b]]))

    def attend(self, s: Attend, t: int) -> Rectangles:
        """The rectangles of an attend."""
        who = np.flatnonzero(s.when.guard.at(t, self.coordinates))
        q, kv = (
            np.hstack([self.blocks(p, side, t, who) for p in parts])
            for side, parts in (("q", s.q), ("kv", s.kv))
        )
        if self.filled:
            self.attended += [("q", flat(who, q)), ("kv", flat(who, kv))]
        return who, q, kv


def ends(loops: Loops, s: Send, t: int, coordinates: Ints) -> Ints:
    """The rank that each rank sends to, or gets something from if that is a root; -1 for none."""
    match s.hop:
        case Shift():
            to = [coordinates[:, a] + e.at(t, coordinates) for a, e in enumerate(s.hop.by)]
        case Table():
            return np.array(s.hop.to, np.intp)
        case FromRoot() | ToRoot():
            to = [*coordinates[:, :-1].T]
            to[s.hop.axis] = s.hop.root.at(t, coordinates)
    return np.ravel_multi_index(tuple(to), loops.mesh, mode="wrap")


def expand(loops: Loops, plan: Plan) -> Iterator[Expanded]:
    """The rows of each step; the plan gives the blocks, and the copies held from the start."""
    start = {side: held(plan, side) for side in ("q", "kv")}
    state = Expansion(loops, plan.partition, {s: x for s, x in start.items() if x is not None})
    for t in range(loops.steps):
        yield _step(state, t)


def _step(state: Expansion, t: int) -> Expanded:
    moves = dict[tuple[str, ...], list[Messages]]()
    rectangles, kinds, exchanged = list[Rectangles](), list[Ints](), set[str]()
    for s in state.loops.statements:
        if not s.when.on(t):
            continue
        messages = list[Messages]()
        match s:
            case Start():
                state.start(s, t)
                continue
            case Attend():
                rectangles.append(state.attend(s, t))
                kinds.append(np.full(len(rectangles[-1][0]), KINDS.index(s.kind)))
                continue
            case Send():
                messages = state.send(s, t)
            case Return():
                messages = state.returned(s)
            case Scatter():
                messages = state.scatter(s, t)
            case Gather() | AllToAll():
                messages = state.exchange(s, t)
                exchanged.add(s.name)
        moves.setdefault(s.tensors, []).extend(messages)
    state.arrive(t, exchanged)
    return Expanded(
        {k: joined(v) for k, v in moves.items()},
        joined(rectangles) if rectangles else None,
        np.concatenate(kinds) if kinds else np.zeros(0, np.intp),
    )
