"""layout_of(plan)   the tokens of each rank, as a layout of the planner if its positions are those.

layout ::= Layout(q, kv)                one side each
side   ::= Named(tokens, name, ...)     `pieces` of a group in a row, from the front and the back,
                                        or stripes of `grain` tokens in turn, which are 0 pieces
         | Joined(tokens, front, rear)   one for the first tokens, such as a cache, one for the rest
         | Ranges(tokens, held)         none of them: the ranges of each rank, as data

A layout lays tokens out over groups of ranks, each of which has one of `members` equal parts of
each piece of its group. Rank g * members + h is member h of group g, or, where groups lie `across`
ranks, rank h * groups + g; with one member, groups are ranks. A name counts only if it gives the
positions of every rank, in order.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import lcm

import numpy as np
from numpy.typing import NDArray

from ringloom.planner.errors import PlanError
from ringloom.planner.ir import Plan
from ringloom.planner.kernel_calls.calls import in_turn
from ringloom.planner.layouts import PIECES, chunks_of, split
from ringloom.planner.partitions import Ranges as Positions
from ringloom.planner.partitions import Side, merge

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Named:
    """A layout of the planner over groups of ranks."""

    tokens: int
    name: str
    pieces: int
    groups: int
    members: int = 1
    across: bool = False
    grain: int = 1

    @property
    def width(self) -> int:
        """The pieces of a group, or the tokens of one stripe."""
        return self.pieces or self.grain

    @property
    def equal(self) -> bool:
        """True if all pieces of all ranks have as many tokens."""
        return self.tokens % (self.groups * self.members * self.width) == 0

    def shards(self) -> Iterator[Ints]:
        """The positions of each rank, in the order of its shard."""
        parts: list[list[list[Positions]]] = [[] for _ in range(self.groups)]
        for positions, owner in chunks_of(self.name, self.tokens, self.groups, self.grain):
            parts[owner].append(split(positions, self.members))
        for rank in range(self.groups * self.members):
            group, member = divmod(rank, self.members)
            if self.across:
                member, group = divmod(rank, self.groups)
            yield np.concatenate([merge(piece[member]) for piece in parts[group]])


@dataclass(frozen=True)
class Joined:
    """Two layouts of the planner: one for the first tokens, one for those behind them."""

    pieces, width, members = 0, 0, 1

    tokens: int
    front: Named
    rear: Named

    @property
    def name(self) -> str:
        return f"{self.front.name}, then {self.rear.name}"

    @property
    def equal(self) -> bool:
        return self.front.equal and self.rear.equal

    def shards(self) -> Iterator[Ints]:
        """The positions of each rank, in the order of its shard."""
        for front, rear in zip(self.front.shards(), self.rear.shards(), strict=True):
            yield np.concatenate([front, rear + self.front.tokens])


@dataclass(frozen=True)
class Ranges:
    """A layout without a name: what each rank owns, in the order of its shard."""

    name, pieces, width, members, equal = "", 0, 0, 1, False

    tokens: int
    held: tuple[list[range], ...]

    def shards(self) -> Iterator[Ints]:
        """The positions of each rank, in the order of its shard."""
        return (np.concatenate([np.arange(0), *map(np.array, own)]) for own in self.held)


Form = Named | Joined | Ranges


@dataclass(frozen=True)
class Layout:
    """Both sides of a partition over `ranks` ranks."""

    q: Form
    kv: Form
    ranks: int
    equal: bool  # all shards of a side, and all pieces of these, have as many tokens
    multiple: int  # any length goes that this divides; 0: only the lengths of the plan

    def pads_pieces(self, plan: Plan) -> bool:
        """True if padding makes all pieces of a plan equally long, as each is padded by itself."""
        sides = ((self.q, plan.partition.q), (self.kv, plan.partition.kv))
        return all(
            isinstance(form, Named)
            and len({*zip(side.owners.tolist(), side.chunk.tolist(), strict=True)})
            == self.ranks * max(1, form.pieces)
            for form, side in sides
        )

    @property
    def apart(self) -> bool:
        """True if a program tells the positions of keys by a function of their own."""
        return self.q != self.kv

    @property
    def alike(self) -> bool:
        """True if the same formula, or the same data, tells both sides."""
        return self.q == replace(self.kv, tokens=self.q.tokens)


def layout_of(plan: Plan) -> Layout:
    """The layout of a plan; PlanError where a rank owns some heads of a token but not all."""
    work, ranks, sides = plan.workload, plan.ranks, plan.partition
    q = form_of(sides.q, work.seq, ranks, "query")
    own, other = ([(b.positions, b.home) for b in side.blocks] for side in (sides.q, sides.kv))
    kv = q if own == other else form_of(sides.kv, work.kv_seq, ranks, "KV")
    both = (q, kv)
    equal = all(form.equal for form in both)
    parts, *others = {_parts(*one) for one in zip((sides.q, sides.kv), both, strict=True)}
    multiple = ranks * parts
    free = equal and bool(q.width) and q == kv and not others and not work.mask.fixed_length
    free = free and work.seq % multiple == 0
    free = free and work.seq >= 2 * multiple  # of one token, what is causal and full is alike
    return Layout(q, kv, ranks, equal, multiple if free else 0)


def _parts(side: Side, form: Form) -> int:
    """The pieces of a rank, of a plan or of its layout: where they are equal, all lengths go."""
    owners = np.unique(np.stack([side.chunk, side.owners]), axis=1)[1]
    return lcm(form.width, int(np.bincount(owners).max()))


def form_of(side: Side, tokens: int, ranks: int, name: str) -> Form:
    """The first layout that gives what every rank owns, in the order of its blocks."""
    shards = side.shards(ranks)
    if sum(map(len, shards)) != tokens:
        raise PlanError(
            f"{name} side: some rank owns only some heads of a token, so there are no shards of"
            " local tokens to emit a program for"
        )
    if one := _named(shards, tokens, ranks):
        return one
    pieces = [[b.positions for b in side.blocks if b.home == rank] for rank in range(ranks)]
    held = [[*dict.fromkeys(own)] for own in pieces]
    for first in set(PIECES.values()) - {0}:  # pieces of a rank
        end = sum(len(part) for own in held for piece in own[:first] for part in piece)
        if both := _joined(shards, end, tokens, ranks):
            return both
    return Ranges(tokens, tuple(map(in_turn, held)))


def _joined(shards: Sequence[Ints], end: int, tokens: int, ranks: int) -> Joined | None:
    """The layouts of the tokens before and behind `end`, if these are what every rank owns."""
    if not 0 < end < tokens:
        return None
    front = _named([own[own < end] for own in shards], end, ranks)
    rear = _named([own[own >= end] - end for own in shards], tokens - end, ranks)
    form = Joined(tokens, front, rear) if front and rear else None
    return form if form and all(map(np.array_equal, form.shards(), shards)) else None


def _named(shards: Sequence[Ints], tokens: int, ranks: int) -> Named | None:
    """The first layout of the planner that gives what every rank owns, in order."""
    forms = _candidates(shards[0], tokens, ranks)
    return next((f for f in forms if all(map(np.array_equal, f.shards(), shards))), None)


def _candidates(first: Ints, tokens: int, ranks: int) -> Iterator[Named]:
    """Layouts in groups of any size; `first`: the shard of rank 0, which says the grain."""
    for members in (m for m in range(1, ranks + 1) if ranks % m == 0):
        for across in (False, True)[: min(members, ranks // members)]:
            for name, pieces in PIECES.items():
                yield Named(tokens, name, pieces, ranks // members, members, across)
    for name in (name for name, pieces in PIECES.items() if not pieces):
        if len(first):
            end = np.flatnonzero(np.diff(first, append=-1) != 1)[0]
            yield Named(tokens, name, 0, ranks, grain=int(end) + 1)
