"""layout_of(plan)   which positions each rank owns, as a formula found in the partition.

layout ::= Layout(q, kv)                 one side each
side   ::= Pieces(tokens, count, places, members)   of `count` consecutive pieces, nearly equal,
                                         group g has pieces a * g + b, ..., in this order; each of
                                         its ranks has one of `members` equal parts of each
         | Stripes(tokens, grain, groups, members)  token i is group (i // grain) mod groups's
         | Ranges(tokens, held)          no formula: the ranges of each rank, as data

Rank g * members + h is member h of group g, or, where groups lie `across` ranks, rank
h * groups + g; with one member, groups are ranks. A formula counts only if it gives the positions
of every rank, in order.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from codegen.text import affine
from planner.errors import PlanError
from planner.ir import Plan
from planner.layouts import LAYOUTS, PEER_NAMES, chunks_of
from planner.partitions import Side, merge

Ints = NDArray[np.int64]
Affine = tuple[int, int]  # a, b of a * group + b


@dataclass(frozen=True)
class Pieces:
    """Consecutive pieces; the first ones are one token longer where they cannot be equal."""

    tokens: int
    count: int
    places: tuple[Affine, ...]
    members: int = 1
    across: bool = False

    @property
    def groups(self) -> int:
        """Returns the number of groups."""
        return self.count // len(self.places)

    @cached_property  # `ringloom emit torch zigzag --ranks 256 --seq 1M` takes 3 times as long
    def pieces(self) -> list[Ints]:
        """The positions of all pieces."""
        return np.array_split(np.arange(self.tokens), self.count)

    def positions(self, rank: int) -> Ints:
        """The positions of a rank, in the order of its shard."""
        group, member = place_of(self, rank)
        numbers = (a * group + b for a, b in self.places)
        own = [self.pieces[n] for n in numbers if 0 <= n < self.count]
        return np.concatenate([_part(x, self.members, member) for x in own] or [np.arange(0)])

    @property
    def multiple(self) -> int:
        """Returns the divisor of every length whose pieces are equal."""
        return self.count * self.members


@dataclass(frozen=True)
class Stripes:
    """Stripes of `grain` tokens, given to the groups in turn."""

    tokens: int
    grain: int
    groups: int
    members: int = 1
    across: bool = False

    def positions(self, rank: int) -> Ints:
        """The positions of a rank, in the order of its shard."""
        group, member = place_of(self, rank)
        starts = np.arange(group * self.grain, self.tokens, self.groups * self.grain)
        whole = (starts[:, None] + np.arange(self.grain)).reshape(-1)
        return _part(whole[whole < self.tokens], self.members, member)

    @property
    def multiple(self) -> int:
        """Returns the divisor of every length whose shards are equal."""
        return self.grain * self.groups * self.members


@dataclass(frozen=True)
class Ranges:
    """A layout without a formula: what each rank owns, in the order of its shard."""

    tokens: int
    held: tuple[tuple[range, ...], ...]

    def positions(self, rank: int) -> Ints:
        """The positions of a rank, in the order of its shard."""
        parts = [np.arange(p.start, p.stop, p.step) for p in self.held[rank]]
        return np.concatenate([*parts, np.arange(0)])

    @property
    def multiple(self) -> int:
        """Its own length and no other."""
        return 0


Form = Pieces | Stripes | Ranges


def place_of(form: Pieces | Stripes, rank: int) -> tuple[int, int]:
    """The group of a rank, and its place in it."""
    if form.across:
        member, group = divmod(rank, form.groups)
        return group, member
    return divmod(rank, form.members)


@dataclass(frozen=True)
class Layout:
    """Both sides of a partition over `ranks` ranks."""

    q: Form
    kv: Form
    ranks: int
    multiple: int  # any length goes that this divides; 0: only the lengths of the plan

    @property
    def alike(self) -> bool:
        """True if the same formula, or the same data, tells both sides."""
        return self.q == replace(self.kv, tokens=self.q.tokens)

    @property
    def equal(self) -> bool:
        """True if all shards of a side, and all pieces of these, have as many tokens."""
        return all(f.multiple and f.tokens % f.multiple == 0 for f in (self.q, self.kv))


def layout_of(plan: Plan) -> Layout:
    """The layout of a plan; PlanError where a rank owns some heads of a token but not all."""
    work, ranks = plan.workload, plan.ranks
    sides = plan.partition
    q = form_of(sides.q, work.seq, ranks, "query")
    kv = q if sides.kv is sides.q else form_of(sides.kv, work.kv_seq, ranks, "KV")
    free = not work.mask.fixed_length and work.seq == work.kv_seq and q == kv
    even = q.multiple > 0 and work.seq % q.multiple == 0
    even &= work.seq >= 2 * q.multiple  # of one token, what is causal and what is full is alike
    return Layout(q, kv, ranks, q.multiple if free and even else 0)


def form_of(side: Side, tokens: int, ranks: int, name: str) -> Form:
    """The first form that gives what every rank owns, in the order of its blocks."""
    chunk, owner = np.unique(np.stack([side.chunk, side.owners]), axis=1)
    sizes = np.array([sum(map(len, c)) for c in side.chunks], np.int64)
    if sizes[chunk].sum() != tokens:
        raise PlanError(
            f"{name} side: some rank owns only some heads of a token, so there are no shards of"
            " local tokens to emit a program for"
        )
    shards = [side.positions(rank) for rank in range(ranks)]
    for form in _candidates(shards, int(np.bincount(owner).max()), tokens, ranks):
        if all(np.array_equal(form.positions(r), shards[r]) for r in range(ranks)):
            return form
    return Ranges(tokens, tuple(_ranges(x) for x in shards))


def _candidates(shards: list[Ints], most: int, tokens: int, ranks: int) -> Iterator[Form]:
    """Forms that the first ranks fit; `most`: blocks of a rank."""
    sizes = [m for m in range(1, ranks + 1) if ranks % m == 0]
    for members, across in ((m, x) for m in sizes for x in (False, True)[: min(m, ranks // m)]):
        groups = ranks // members
        firsts = shards[:groups] if across else shards[::members]
        for width in dict.fromkeys((most, 1, 2)):
            if places := _places(firsts, width, tokens):
                yield Pieces(tokens, width * groups, places, members, across)
        if grain := _grain(shards[0], members):
            yield Stripes(tokens, grain, groups, members, across)


def _places(firsts: list[Ints], width: int, tokens: int) -> tuple[Affine, ...]:
    """The pieces of group g as a * g + b, told by groups 0 and 1; () if there are none.

    `firsts` are the shards of the first rank of each group.
    """
    count = width * len(firsts)
    first, *more = (_numbers(shard, width, tokens, count) for shard in firsts[:2])
    if len(first) != width or any(len(other) != width for other in more):
        return ()
    second = more[0] if more else first
    return tuple((b - a, a) for a, b in zip(first, second, strict=True))


def _numbers(shard: Ints, width: int, tokens: int, count: int) -> list[int]:
    """The numbers of the pieces that a shard begins with, one per run of the same piece."""
    size, more = divmod(tokens, count)
    edge = (size + 1) * more
    number = np.where(shard < edge, shard // (size + 1), more + (shard - edge) // max(size, 1))
    starts = np.flatnonzero(np.diff(number, prepend=-1))
    return [int(n) for n in number[starts[: width + 1]]]


def _grain(shard: Ints, members: int) -> int:
    """The length of the first stripe; 0 if the shard is one."""
    ends = np.flatnonzero(np.diff(shard) != 1)
    return int(ends[0]) + 1 if len(ends) else 0


def _ranges(positions: Ints) -> tuple[range, ...]:
    """Positions as few ranges, in their order."""
    ranges, at = list[range](), 0
    steps = np.diff(positions)
    turns = [*(np.flatnonzero(np.diff(steps)) + 1).tolist(), len(steps)]
    while at < len(positions):
        turn = next((t for t in turns if t > at), at)
        step = int(steps[at]) if at < len(steps) and steps[at] > 0 else 1
        last = turn if at < len(steps) and steps[at] > 0 else at
        ranges.append(range(int(positions[at]), int(positions[last]) + 1, step))
        at = last + 1
    return tuple(ranges)


def _part(whole: Ints, members: int, member: int) -> Ints:
    """One of nearly equal parts, the first ones longer."""
    return np.array_split(whole, members)[member]


# ---- in words


def described(form: Form, ranks: int) -> str:
    """A side in one sentence: "of 16 equal pieces, rank r holds piece r and piece 15 - r"."""
    match form:
        case Pieces(tokens, count, places, 1):
            equal = "equal" if tokens % count == 0 else "nearly equal"
            names = [f"piece {affine([(a, 'r')], b)}" for a, b in places]
            return f"of {count} {equal} pieces, rank r holds {_listed(names)}"
        case Pieces(tokens, count, places, members):
            equal = "equal" if tokens % form.multiple == 0 else "nearly equal"
            names = [f"piece {affine([(a, 'g')], b)}" for a, b in places]
            share = f"each of its {members} ranks one of {members} parts of each{_across(form)}"
            return f"of {count} {equal} pieces, group g holds {_listed(names)}, {share}"
        case Stripes(_, grain, groups, members):
            stripes = "single tokens" if grain == 1 else f"stripes of {grain} tokens"
            if members == 1:
                return f"{stripes} given to the {groups} ranks in turn"
            cut = f"cut between their {members} ranks{_across(form)}"
            return f"{stripes} given to {groups} groups in turn, {cut}"
    return f"no formula: the ranges of all {ranks} ranks are listed"


def _across(form: Pieces | Stripes) -> str:
    return f"; rank r is in group r % {form.groups}" if form.across else ""


def also_called(form: Form) -> str:
    """Finds the layout's names in other libraries, by comparing it with the planner's layouts."""
    if isinstance(form, Ranges):
        return ""
    groups, grain = form.groups, form.grain if isinstance(form, Stripes) else 1
    whole = replace(form, members=1, across=False)
    for name in LAYOUTS:
        held: list[list[Ints]] = [[np.arange(0)] for _ in range(groups)]
        try:
            chunks = chunks_of(name, form.tokens, groups, grain)
        except PlanError:  # stripes of several tokens are not for every layout
            continue
        for positions, owner in chunks:
            held[owner].append(merge(positions))
        if all(np.array_equal(np.concatenate(x), whole.positions(g)) for g, x in enumerate(held)):
            return f"{name} = {PEER_NAMES[name]}"
    return ""


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
