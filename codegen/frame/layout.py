"""layout_of(plan)   finds a layout of the planner with the tokens of each rank, or lists them.

layout ::= Layout(q, kv)                one side each
side   ::= Named(tokens, name, ...)     a layout of the planner: `pieces` contiguous pieces per
                                        group, or (0 pieces) stripes of `grain` tokens in turn
         | Joined(tokens, front, rear)  a layout for the first tokens, such as a cache, and another
                                        for the others
         | Ranges(tokens, held)         no known layout: the ranges of each rank, as data

A layout assigns tokens to groups of ranks; each rank of a group has one of `members` equal parts of
each piece of the group. Rank g * members + h is member h of group g or, if groups lie `across`
ranks, rank h * groups + g is. If `members` is 1, groups are ranks. A layout matches only if it
gives the positions of every rank, in order.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import lcm

import numpy as np
from numpy.typing import NDArray

from ringloom.planner.errors import PlanError
from ringloom.planner.ir import Plan
from ringloom.planner.kernel_calls.calls import to_ranges
from ringloom.planner.layouts import PIECES, chunks_of, split
from ringloom.planner.partitions import Ranges as Positions
from ringloom.planner.partitions import Side, sorted_positions

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
        """The number of pieces of a group, or of tokens of a stripe."""
        return self.pieces or self.grain

    @property
    def equal(self) -> bool:
        """True if all pieces of all ranks have equally many tokens."""
        return self.tokens % (self.groups * self.members * self.width) == 0

    def shards(self) -> Iterator[Ints]:
        """Yields the positions of each rank, in the order of its shard."""
        parts: list[list[list[Positions]]] = [[] for _ in range(self.groups)]
        for positions, owner in chunks_of(self.name, self.tokens, self.groups, self.grain):
            parts[owner].append(split(positions, self.members))
        for rank in range(self.groups * self.members):
            group, member = divmod(rank, self.members)
            if self.across:
                member, group = divmod(rank, self.groups)
            yield np.concatenate([sorted_positions(piece[member]) for piece in parts[group]])


@dataclass(frozen=True)
class Joined:
    """Two layouts of the planner: one for the first tokens, one for the tokens after them."""

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
        """Yields the positions of each rank, in the order of its shard."""
        for front, rear in zip(self.front.shards(), self.rear.shards(), strict=True):
            yield np.concatenate([front, rear + self.front.tokens])


@dataclass(frozen=True)
class Ranges:
    """A layout without a name: the ranges of each rank, in the order of its shard."""

    name, pieces, width, members, equal = "", 0, 0, 1, False

    tokens: int
    held: tuple[list[range], ...]

    def shards(self) -> Iterator[Ints]:
        """Yields the positions of each rank, in the order of its shard."""
        return (np.concatenate([np.arange(0), *map(np.array, own)]) for own in self.held)


Form = Named | Joined | Ranges


@dataclass(frozen=True)
class Layout:
    """Both sides of a partition over `ranks` ranks."""

    q: Form
    kv: Form
    ranks: int
    equal: bool  # all shards of a side, and all of their pieces, have equally many tokens
    multiple: int  # of valid lengths; 0 if only the lengths of the plan are valid

    def pads_pieces(self, plan: Plan) -> bool:
        """Returns True if padding each piece separately makes all pieces of a plan equally long."""
        sides = ((self.q, plan.partition.q), (self.kv, plan.partition.kv))
        return all(
            isinstance(form, Named)
            and len({*zip(side.owners.tolist(), side.chunk.tolist(), strict=True)})
            == self.ranks * max(1, form.pieces)
            for form, side in sides
        )

    @property
    def separate_kv(self) -> bool:
        """True if keys need a separate function for their positions."""
        return self.q != self.kv

    @property
    def same_formula(self) -> bool:
        """True if both sides have the same formula or data."""
        return self.q == replace(self.kv, tokens=self.q.tokens)


def layout_of(plan: Plan) -> Layout:
    """Returns the layout of a plan; raises PlanError if a rank owns only some heads of a token."""
    work, ranks, sides = plan.workload, plan.ranks, plan.partition
    q = form_of(sides.q, work.seq, ranks, "query")
    q_owners, kv_owners = (
        [(b.positions, b.home) for b in side.blocks] for side in (sides.q, sides.kv)
    )
    kv = q if q_owners == kv_owners else form_of(sides.kv, work.kv_seq, ranks, "KV")
    equal = q.equal and kv.equal
    parts, *others = {_parts_per_rank(sides.q, q), _parts_per_rank(sides.kv, kv)}
    multiple = ranks * parts
    any_length = equal and bool(q.width) and q == kv and not others and not work.mask.fixed_length
    if any_length:  # a piece of one token can be both causal and full
        any_length = work.seq % multiple == 0 and work.seq >= 2 * multiple
    return Layout(q, kv, ranks, equal, multiple if any_length else 0)


def _parts_per_rank(side: Side, form: Form) -> int:
    """Returns a number of parts per rank that makes pieces of the plan and its layout equal."""
    owners = np.unique(np.stack([side.chunk, side.owners]), axis=1)[1]
    return lcm(form.width, int(np.bincount(owners).max()))


def form_of(side: Side, tokens: int, ranks: int, name: str) -> Form:
    """Returns the first layout that gives the tokens of every rank, in the order of its blocks."""
    shards = side.shards(ranks)
    if sum(map(len, shards)) != tokens:
        raise PlanError(
            f"{name} side: a rank owns only some heads of a token, but programs need shards with"
            " all heads of their tokens"
        )
    if named := _match_named(shards, tokens, ranks):
        return named
    pieces = [[b.positions for b in side.blocks if b.home == rank] for rank in range(ranks)]
    held = [[*dict.fromkeys(own)] for own in pieces]
    for count in set(PIECES.values()) - {0}:  # pieces per rank in the first layout
        end = sum(len(part) for own in held for piece in own[:count] for part in piece)
        if joined := _match_joined(shards, end, tokens, ranks):
            return joined
    return Ranges(tokens, tuple(map(to_ranges, held)))


def _match_joined(shards: Sequence[Ints], end: int, tokens: int, ranks: int) -> Joined | None:
    """Returns the layouts of the tokens before and after `end`, if they give all shards."""
    if not 0 < end < tokens:
        return None
    front = _match_named([own[own < end] for own in shards], end, ranks)
    rear = _match_named([own[own >= end] - end for own in shards], tokens - end, ranks)
    form = Joined(tokens, front, rear) if front and rear else None
    return form if form and all(map(np.array_equal, form.shards(), shards)) else None


def _match_named(shards: Sequence[Ints], tokens: int, ranks: int) -> Named | None:
    """Returns the first layout of the planner that gives all shards, in order."""
    forms = _candidates(shards[0], tokens, ranks)
    return next((f for f in forms if all(map(np.array_equal, f.shards(), shards))), None)


def _candidates(first: Ints, tokens: int, ranks: int) -> Iterator[Named]:
    """Yields layouts of rank groups of every size; the shard of rank 0 (`first`) sets the grain."""
    for members in (m for m in range(1, ranks + 1) if ranks % m == 0):
        for across in (False, True)[: min(members, ranks // members)]:
            for name, pieces in PIECES.items():
                yield Named(tokens, name, pieces, ranks // members, members, across)
    for name in (name for name, pieces in PIECES.items() if not pieces):
        if len(first):
            end = np.flatnonzero(np.diff(first, append=-1) != 1)[0]
            yield Named(tokens, name, 0, ranks, grain=int(end) + 1)
