"""expand(loops, plan)   what the loop form means: the rows of each step."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from planner.errors import PlanError
from planner.ir import Plan
from planner.loops.exchanges import Filled, alike_along, scattered, shared
from planner.loops.form import (
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
    NOTHING,
    Copies,
    Messages,
    Rectangles,
    Rows,
    initial,
    joined,
    pack,
    same,
    sliced,
    without,
)

Coming = dict[tuple[str, str, int], list[Copies]]  # by name, side, first step they are read in
STAYS = -1  # instead of that step
Moving = Start | Send | Gather | AllToAll | Return | Scatter


@dataclass(frozen=True, slots=True)
class Expanded(Rows):
    """One step, and the kind (of KINDS) said of each of its rectangles."""

    kinds: Ints


@dataclass
class Expansion:
    """The values of all names as the steps go by.

    `stay` holds them by name and side, `aged` by name, side and the first step they are read in;
    `brought` the messages of each exchange, `sums` the values that sums went further than.
    """

    loops: Loops
    plan: Plan  # gives the blocks, and the copies held from the start
    stay: dict[tuple[str, str], Ints] = field(default_factory=dict)
    aged: dict[tuple[str, str, int], Ints] = field(default_factory=dict)
    sums: dict[tuple[str, str, int], Ints] = field(default_factory=dict)
    brought: dict[str, list[Messages]] = field(default_factory=dict)
    coming: Coming = field(default_factory=lambda: defaultdict(list))
    following: Coming = field(default_factory=lambda: defaultdict(list))
    added: list[tuple[str, Ints, Ints]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.coordinates = self.loops.coordinates()
        self.ranks = len(self.coordinates)
        self.everyone = np.arange(self.ranks)
        self.filled = Filled(self.plan)
        for side in ("q", "kv"):
            self.stay |= {(name, side): x for name, x in initial(self.plan, side).items()}

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
        table = self.table(part, side, t, sums).take(who, axis=0)
        at = self.coordinates.take(who if seen is None else seen, axis=0)
        return sliced(table, part, t, at)

    def table(self, part: Part, side: str, t: int, sums: bool = False) -> Ints:
        """The value that a part is of."""
        table = self.stay.get((part.value, side))
        if table is None:
            key = part.value, side, t - int(part.lag.at(t, self.coordinates[:1])[0])
            table = self.sums.get(key) if sums else None
            table = self.aged.get(key) if table is None else table
        if table is None:
            raise PlanError(f"step {t}: {part.value} is read, but there is none of that age")
        return table

    def moved(self, s: Moving, t: int) -> list[Messages]:
        """The messages of a statement; what they bring is there from the next step on."""
        match s:
            case Start():
                self.start(s, t)
                return []
            case Send():
                return self.send(s, t)
            case Return():
                return self.returned(s)
            case Scatter():
                return self.scatter(s, t)
            case Gather() | AllToAll():
                return self.exchange(s, t)

    def start(self, s: Start, t: int) -> None:
        """A value gets another name."""
        side, sums = s.side, s.sums
        blocks = self.blocks(s.part, side, t, self.everyone, sums=sums)
        self.aged[s.name, side, t] = self._packed(side, [(self.everyone, blocks)])

    def _packed(self, side: str, parts: list[Copies]) -> Ints:
        return pack(self.ranks, self.plan.partition.side(side), *joined(parts))

    def send(self, s: Send, t: int) -> list[Messages]:
        """The messages of a send; what they bring has its name from the next step on."""
        side, sums = s.side, s.sums
        src, dst = self._pairs(s, t)
        sent = np.hstack([self.blocks(p, side, t, src, sums=sums) for p in s.parts])
        if sums:
            self.added.append((side, dst, sent))
        if s.into:
            self._add(s.into, side, t, dst, sent)
        self.coming[s.name, side, t + 1].append((dst, sent))
        return [(src, dst, sent)]

    def _pairs(self, s: Send, t: int) -> tuple[Ints, Ints]:
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
        new = (here < 0).all(axis=1)
        if not same(here[~new], sent[~new]):
            raise PlanError(f"step {t}: sums are added into {into.value}, but are for other blocks")
        if new.any():
            key = into.value, side, t - int(into.lag.at(t, self.coordinates[:1])[0])
            if key not in self.aged or into.pieces or into.heads:
                raise PlanError(f"step {t}: sums are added into {into.value}, which is not there")
            self.following[key].append((dst[new], sent[new]))

    def exchange(self, s: Gather | AllToAll, t: int) -> list[Messages]:
        """The messages of an exchange; what they bring stays, beside what each rank keeps."""
        side = s.side
        table = self.table(s.part, side, t)
        share = s.share if isinstance(s, AllToAll) else s.part
        made = shared(table, share, t, self.loops.mesh, self.coordinates, s.axis)
        self.coming[s.name, side, STAYS].extend((dst, sent) for _, dst, sent in made)
        self.brought[s.name] = made[1:]
        return made[1:]

    def scatter(self, s: Scatter, t: int) -> list[Messages]:
        """The messages of sums to their owners along an axis, but for those with no sums."""
        side = s.side
        table = self.blocks(s.part, side, t, self.everyone)
        if s.same != alike_along(table, self.loops.mesh, s.axis):
            raise PlanError(f"step {t}: ranks of a scatter have the same blocks, or have not")
        made = scattered(table, self.plan.partition.side(side), self.coordinates, s.axis)
        return [self.filled.of(side, made)]

    def returned(self, s: Return) -> list[Messages]:
        """The messages of an exchange, the other way round, but for those with no sums in them."""
        if s.exchange not in self.brought:
            raise PlanError(f"{s.exchange} is returned before it is there")
        side, sent = s.side, self.brought[s.exchange]
        return [self.filled.of(side, (dst, src, blocks)) for src, dst, blocks in sent]

    def arrive(self) -> None:
        """Makes readable what was under way.

        Of the values that stay, but for what ranks own, the last one to get a block has it.
        """
        for key, more in self.following.items():
            table = self.sums.get(key, self.aged[key]).reshape(self.ranks, -1)
            self.sums[key] = self._packed(key[1], [(self.everyone, table), *more])
        for (name, side, born), parts in self.coming.items():
            if born != STAYS:
                self.aged[name, side, born] = self._packed(side, parts)
                continue
            whole = self.plan.partition.side(side)
            for other in [o for o in self.stay if o[1] == side and o[0] != OWN]:
                self.stay[other] = without(self.stay[other], whole, *joined(parts))
            self.stay[name, side] = self._packed(side, parts)
        for side, rank, blocks in self.added:
            self.filled.note(side, rank, blocks)
        for waiting in (self.coming, self.following, self.added):
            waiting.clear()

    def attend(self, s: Attend, t: int) -> Rectangles:
        """The rectangles of an attend."""
        who = np.flatnonzero(s.when.guard.at(t, self.coordinates)).astype(np.int32)
        q, kv = (
            np.hstack([self.blocks(p, side, t, who) for p in parts])
            for side, parts in (("q", s.q), ("kv", s.kv))
        )
        self.added += [("q", who, q), ("kv", who, kv)]
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
    """The rows of each step."""
    state = Expansion(loops, plan)
    for t in range(loops.steps):
        yield _step(state, t)


def _step(state: Expansion, t: int) -> Expanded:
    moves = dict[tuple[str, ...], list[Messages]]()
    rectangles, kinds = list[Rectangles](), list[Ints]()
    for s in state.loops.statements:
        if not s.when.on(t):
            continue
        if isinstance(s, Attend):
            rectangles.append(state.attend(s, t))
            kinds.append(np.full(len(rectangles[-1][0]), KINDS.index(s.kind)))
        elif messages := state.moved(s, t):
            moves.setdefault(s.tensors, []).extend(messages)
    state.arrive()
    return Expanded(
        {k: joined(v) for k, v in moves.items()},
        joined(rectangles or [NOTHING]),
        np.concatenate([np.zeros(0, np.intp), *kinds]),
    )
