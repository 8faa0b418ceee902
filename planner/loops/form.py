"""The loop form of a plan: a short program, as one would write it on a whiteboard.

loops     ::= Loops(mesh, steps, statement ...)         rank = mixed radix of its coordinates
statement ::= Start(when, name, tensors, part)           from this step on, `name` is that value
            | Send(when, name, tensors, parts, hop, into)         what arrives is `name` from t + 1
            | Exchange(when, name, tensors, part, axis, heads)    the receiver's heads of each part
            | Return(when, name, tensors, axis, lag)              sums go back to where it came from
            | Attend(when, q, kv, kind)                           parts x parts, one rectangle
when      ::= first..last [, `width` steps of every `every`] [, guard]
part      ::= value [@ t - lag] [pieces lo..hi] [heads lo..hi]
value     ::= "own" | "held" | a name
hop       ::= Shift(an expression per axis)
            | Root(axis, root)        one coordinate to the others; sums the other way
guard     ::= axis in lo..hi & ... [of the receiver]     cyclic where lo > hi; axis -1 is the rank
            | FIRST[rank] <= t <= LAST[rank] | rank in a list
expr      ::= (c + b * ((t - phase) // period) + a . coordinates) mod m | TABLE[that]
kind      ::= full | causal | strict | tiles

A causal rectangle has as many keys as queries, and allows key index <= query index; a strict one
allows key index < query index. `tiles` stands for all pairs of both parts that the mask allows, cut
in any way; blocks without an allowed pair are not in the rectangle.

In a step every message reads its source as of the start of the step; then attends add, then
arrivals. A value that was sent is readable from the next step on ("age" t - lag). So is a gathered
or exchanged value, which includes the part that each rank kept; the value of an exchange of a
single step stays readable and has no age.

A message of sums (OUT, DQ, DKV) names the input values that the sums belong to: `DKV for A @ t - 1`
is the rank's accumulator for the blocks that A had one step ago. `into` names the value that the
receiver's accumulator belongs to when the message is added at the end of the step: "own" if the
receiver owns the blocks; none if they are parts of several values. Sums follow their value.

`held` are the initial copies (`Plan.start`), with the rank's own blocks of the same rectangles. If
an attend's queries arrive in a message without Q (a backward pass that kept Q and OUT from the
forward pass), Q and OUT of the same blocks are held ones.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ringloom.planner.analysis.kinds import Kind
from ringloom.planner.ir import TENSORS

Ints = NDArray[np.signedinteger[Any]]
OWN, HELD = "own", "held"  # blocks that a rank owns; initial copies


@dataclass(frozen=True, slots=True)
class Expr:
    """An integer that depends on the step and the rank's coordinates."""

    constant: int = 0
    step: int = 0  # coefficient of the clock (t - phase) // period
    axes: tuple[int, ...] = ()  # coefficients of the coordinates
    modulo: int = 0
    table: tuple[int, ...] = ()  # then the rest is an index into it
    period: int = 1
    phase: int = 0

    def at(self, t: int, coordinates: Ints) -> Ints:
        """Returns the value in step t on ranks with these coordinates [n, axes + 1]: [n]."""
        clock = (t - self.phase) // self.period
        value = np.full(len(coordinates), self.constant + self.step * clock, np.intp)
        if self.axes:
            value = value + coordinates[:, : len(self.axes)] @ np.array(self.axes, np.intp)
        if self.modulo:
            value = value % self.modulo
        return np.array(self.table, np.intp)[value] if self.table else value


Ends = tuple[Expr, Expr]  # first and last, the last included


@dataclass(frozen=True, slots=True)
class Part:
    """Some pieces and heads of a value; None means all."""

    value: str
    lag: int = 0  # steps since it arrived
    pieces: Ends | None = None
    heads: Ends | None = None


@dataclass(frozen=True, slots=True)
class Guard:
    """The ranks that take part; all by default."""

    bounds: tuple[tuple[int, Expr | None, Expr | None], ...] = ()  # axis, lo, hi; None is open
    spans: tuple[tuple[int, int], ...] = ()  # first and last step of each rank
    ranks: tuple[int, ...] = ()  # in no order
    receiver: bool = False  # True: the guard is on receivers, not on senders

    def at(self, t: int, coordinates: Ints) -> NDArray[np.bool_]:
        """Marks the ranks with these coordinates [n, axes + 1] that take part in step t: [n]."""
        on = np.ones(len(coordinates), np.bool_)
        for axis, low, high in self.bounds:
            x = coordinates[:, axis]
            lo, hi = (e.at(t, coordinates) if e else None for e in (low, high))
            above = on if lo is None else lo <= x
            below = on if hi is None else x <= hi
            around = lo is not None and hi is not None and lo > hi
            on = on & np.where(around, above | below, above & below)
        rank = coordinates[:, -1]
        if self.spans:
            first, last = np.array(self.spans, np.intp)[rank].T
            on &= (first <= t) & (t <= last)
        if self.ranks:
            on &= np.isin(rank, self.ranks)
        return on

    @property
    def tabled(self) -> bool:
        """True if it is data instead of a formula."""
        return bool(self.spans or self.ranks)


@dataclass(frozen=True, slots=True)
class When:
    """The steps in which a statement runs, and the ranks that run it."""

    first: int
    last: int
    every: int = 1  # with gaps: `width` steps of each `every`
    width: int = 1
    guard: Guard = Guard()

    def on(self, t: int) -> bool:
        """Returns True if the statement runs in step t."""
        return self.first <= t <= self.last and (t - self.first) % self.every < self.width

    @property
    def steps(self) -> list[int]:
        """The steps in which the statement runs."""
        return [t for t in range(self.first, self.last + 1) if self.on(t)]


@dataclass(frozen=True, slots=True)
class Shift:
    """Each rank sends to the rank this far along each axis, cyclically."""

    by: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Root:
    """A broadcast: ranks at one coordinate of an axis send to the guard's ranks along it.

    Sums go the other way, to the root: a reduction.
    """

    axis: int
    root: Expr


Hop = Shift | Root


@dataclass(frozen=True, slots=True)
class Moves:
    """A statement about a value of some tensors, all inputs or all sums of one side."""

    when: When
    name: str
    tensors: tuple[str, ...]

    @property
    def side(self) -> str:
        """The side of its tensors."""
        return TENSORS[self.tensors[0]].side

    @property
    def sums(self) -> bool:
        """True for sums, False for inputs."""
        return TENSORS[self.tensors[0]].accumulates


@dataclass(frozen=True, slots=True)
class Start(Moves):
    """Names a part from the first step of `when` on."""

    part: Part


@dataclass(frozen=True, slots=True)
class Send(Moves):
    """One message per rank; several parts travel together."""

    parts: tuple[Part, ...]
    hop: Hop
    into: Part | None = None  # of sums: what they are added to, in the receiver's names at step t


@dataclass(frozen=True, slots=True)
class Exchange(Moves):
    """Every rank along an axis gets its `heads` (those of the receiver) of every rank's part."""

    part: Part
    axis: int
    heads: Ends | None = None

    @property
    def again(self) -> bool:
        """True if it runs in several steps, so that its value has an age."""
        return self.when.last > self.when.first

    @property
    def gathers(self) -> bool:
        """True if all receivers get the same heads: a gather."""
        return not any(e.axes for e in self.heads or ())


@dataclass(frozen=True, slots=True)
class Return(Moves):
    """Sends sums back over an exchange, or sums for held values to the owners.

    A reduce-scatter if all ranks along the axis have the same blocks, otherwise an all-to-all. If a
    rank attended to nothing of a message, it has no sums to send (a program sends zeros).
    """

    axis: int
    lag: int = 0


@dataclass(frozen=True, slots=True)
class Attend:
    """A rectangle of queries and keys, with its kind under the mask."""

    when: When
    q: tuple[Part, ...]
    kv: tuple[Part, ...]
    kind: Kind


Statement = Start | Send | Exchange | Return | Attend
Node = TypeVar("Node", Part, Expr)


@dataclass(frozen=True, slots=True)
class Section:
    """Steps first..last that statements connect, and the statements that begin in them."""

    first: int
    last: int
    statements: tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class Loops:
    """The loop form of one plan."""

    mesh: tuple[int, ...]
    steps: int
    statements: tuple[Statement, ...]

    def coordinates(self) -> Ints:
        """Returns the coordinates of each rank, then the rank itself: [ranks, axes + 1]."""
        ranks = np.arange(int(np.prod(self.mesh)))
        return np.stack([*np.unravel_index(ranks, self.mesh), ranks], axis=1)

    @property
    def exchanges(self) -> dict[str, Exchange]:
        """The exchanges of inputs, by the names of their values."""
        return {s.name: s for s in self.statements if isinstance(s, Exchange)}

    def source(self, s: Return) -> str:
        """Returns the value that sums go back to."""
        exchange = self.exchanges.get(s.name)
        return exchange.part.value if exchange else OWN

    def sections(self) -> tuple[Section, ...]:
        """Cuts the steps wherever no statement spans two steps."""
        spans = [s.when for s in self.statements]
        joined = {t for w in spans for t in range(w.first + 1, w.last + 1)}
        cuts = [t for t in range(self.steps + 1) if t not in joined]
        return tuple(
            Section(a, b - 1, tuple(s for s in self.statements if a <= s.when.first < b))
            for a, b in pairwise(cuts)
        )


def walk_nodes(kind: type[Node], tree: object) -> Iterator[Node]:
    """Yields all parts, or all expressions, of a statement, a part or a guard."""
    if isinstance(tree, kind):
        yield tree
    elif isinstance(tree, tuple):
        for item in tree:
            yield from walk_nodes(kind, item)
    else:
        for name in getattr(tree, "__match_args__", ()):
            yield from walk_nodes(kind, getattr(tree, name))
