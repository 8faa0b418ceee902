"""expand(loops, partition)   what the loop form means: the rows of each step."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from planner.errors import PlanError
from planner.ir import TENSORS
from planner.loops.form import (
    OWN,
    AllToAll,
    Attend,
    Gather,
    Ints,
    Kind,
    Loops,
    Part,
    Return,
    Send,
    Shift,
    Start,
)
from planner.loops.values import flat, owned, pack, stack, within
from planner.partitions import Partition

Messages = tuple[Ints, Ints, Ints]  # src [n], dst [n], blocks [n, w]
Rectangles = tuple[Ints, Ints, Ints]  # rank [n], q [n, a], kv [n, b]


@dataclass(frozen=True)
class Rows:
    """One step: messages by their tensors, rectangles, and the kind claimed of each of those."""

    moves: dict[tuple[str, ...], Messages]
    attends: Rectangles | None
    kinds: tuple[Kind, ...]


@dataclass
class Expansion:
    """The values of all names as the steps go by."""

    loops: Loops
    partition: Partition
    stay: dict[tuple[str, str], Ints] = field(default_factory=dict)  # name, side
    aged: dict[tuple[str, str, int], Ints] = field(default_factory=dict)  # and the step
    brought: dict[str, list[Messages]] = field(default_factory=dict)  # by an exchange
    coming: dict[tuple[str, str], list[tuple[Ints, Ints]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.coordinates = self.loops.coordinates()
        self.ranks = len(self.coordinates)
        self.everyone = np.arange(self.ranks)
        for side in ("q", "kv"):
            self.stay[OWN, side] = owned(self.ranks, self.partition.side(side))

    def blocks(self, part: Part, side: str, t: int, who: Ints, seen: Ints | None = None) -> Ints:
        """The blocks [n, w] of a part on ranks `who`, its slices as ranks `seen` say them."""
        table = self.stay.get((part.value, side))
        if table is None:
            born = t - int(part.lag.at(t, self.coordinates[:1])[0])
            table = self.aged.get((part.value, side, born))
        if table is None:
            raise PlanError(f"step {t}: {part.value} is read, but there is none of that age")
        at = self.coordinates[who if seen is None else seen]
        pieces, heads = (
            None if ends is None else (ends[0].at(t, at), ends[1].at(t, at))
            for ends in (part.pieces, part.heads)
        )
        return within(table[who], pieces, heads)

    def start(self, s: Start, t: int) -> None:
        side = TENSORS[s.tensors[0]].side
        blocks = self.blocks(s.part, side, t, self.everyone)
        self.aged[s.name, side, t] = self.packed(side, *flat(self.everyone, blocks))

    def packed(self, side: str, rank: Ints, block: Ints) -> Ints:
        return pack(self.ranks, self.partition.side(side), rank, block)

    def send(self, s: Send, t: int) -> list[Messages]:
        """The messages of a send; what they bring has its name from the next step on."""
        side, dst = TENSORS[s.tensors[0]].side, receivers(self.loops, s, t, self.coordinates)
        asked = self.coordinates[dst] if s.when.guard.receiver else self.coordinates
        who = np.flatnonzero(s.when.guard.at(t, asked) & (dst >= 0))
        sent = np.hstack([self.blocks(p, side, t, who) for p in s.parts])
        self.coming.setdefault((s.name, side), []).append(flat(dst[who], sent))
        return [(who, dst[who], sent)]

    def exchange(self, s: Gather | AllToAll, t: int) -> list[Messages]:
        """The messages of an exchange; what they bring stays, beside what each rank keeps."""
        side, n = TENSORS[s.tensors[0]].side, self.loops.mesh[s.axis]
        part = s.part
        if isinstance(s, AllToAll):
            part = replace(part, pieces=s.share.pieces, heads=s.share.heads)
        messages, pairs = list[Messages](), list[tuple[Ints, Ints]]()
        for hop in range(n):
            to = self.coordinates[:, :-1].copy()
            to[:, s.axis] = (to[:, s.axis] + hop) % n
            dst = np.ravel_multi_index(to.T, self.loops.mesh)
            sent = self.blocks(part, side, t, self.everyone, dst)
            pairs.append(flat(dst, sent))
            messages += [(self.everyone, dst, sent)] * bool(hop)
        self.brought[s.name] = messages
        self.coming.setdefault((s.name, side), []).extend(pairs)
        return messages

    def arrive(self, t: int, exchanged: set[str]) -> None:
        """What was under way is there."""
        for (name, side), pairs in self.coming.items():
            rank, block = (np.concatenate(x) for x in zip(*pairs, strict=True))
            table = self.packed(side, rank, block)
            if name in exchanged:
                self.take(side, rank, block)
                self.stay[name, side] = table
            else:
                self.aged[name, side, t + 1] = table
        self.coming = {}

    def take(self, side: str, rank: Ints, block: Ints) -> None:
        """Of the values that stay, the last one to get a block has it."""
        taken = np.zeros((self.ranks, len(self.partition.side(side))), bool)
        taken[rank, block] = True
        for other in [o for o in self.stay if o[1] == side]:
            r, b = flat(self.everyone, self.stay[other].reshape(self.ranks, -1))
            if taken[r, b].any():
                self.stay[other] = self.packed(side, r[~taken[r, b]], b[~taken[r, b]])

    def attend(self, s: Attend, t: int) -> Rectangles:
        who = np.flatnonzero(s.when.guard.at(t, self.coordinates))
        q, kv = (
            np.hstack([self.blocks(p, side, t, who) for p in parts])
            for side, parts in (("q", s.q), ("kv", s.kv))
        )
        return who, q, kv


def receivers(loops: Loops, s: Send, t: int, coordinates: Ints) -> Ints:
    """The rank that each rank sends to: [ranks], -1 for none."""
    if not isinstance(s.hop, Shift):
        return np.array(s.hop.to, np.intp)
    to = [
        (coordinates[:, a] + e.at(t, coordinates)) % n
        for a, (e, n) in enumerate(zip(s.hop.by, loops.mesh, strict=True))
    ]
    return np.ravel_multi_index(to, loops.mesh)


def expand(loops: Loops, partition: Partition) -> Iterator[Rows]:
    """The rows of each step, and the kind that each rectangle is said to be of."""
    state = Expansion(loops, partition)
    for t in range(loops.steps):
        moves, rectangles = defaultdict(list), list[Rectangles]()
        kinds, exchanged = list[Kind](), set[str]()
        for s in loops.statements:
            if not s.when.on(t):
                continue
            match s:
                case Start():
                    state.start(s, t)
                case Attend():
                    rectangles.append(state.attend(s, t))
                    kinds += [s.kind] * len(rectangles[-1][0])
                case Send():
                    moves[s.tensors] += state.send(s, t)
                case Return():
                    moves[s.tensors] += [(d, r, b) for r, d, b in state.brought[s.exchange]]
                case Gather() | AllToAll():
                    moves[s.tensors] += state.exchange(s, t)
                    exchanged.add(s.name)
        state.arrive(t, exchanged)
        yield Rows(
            {k: joined(v) for k, v in moves.items()},
            joined(rectangles) if rectangles else None,
            tuple(kinds),
        )


def joined(parts: list[tuple[Ints, Ints, Ints]]) -> tuple[Ints, Ints, Ints]:
    """Columns of several nodes as one."""
    columns = [
        np.concatenate(c) if c[0].ndim == 1 else stack(list(c)) for c in zip(*parts, strict=True)
    ]
    return columns[0], columns[1], columns[2]
