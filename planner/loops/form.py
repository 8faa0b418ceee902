"""The loop form of a plan: a short program, as an engineer would write it by hand.

loops     ::= Loops(mesh, steps, statement ...)         rank = mixed radix of its coordinates
statement ::= Start(when, name, tensors, part)                    names a part
            | Send(when, name, tensors, parts, hop, into)         arrivals are `name` from t + 1 on
            | Exchange(when, name, tensors, part, axis, heads)    the receiver's heads of each part
            | Return(when, name, tensors, axis, lag)              sums go back over an exchange
            | Attend(when, q, kv, kind)                           a rectangle of parts x parts
when      ::= first..last [, `width` steps of every `every`] [, guard]
part      ::= value [@ t - lag] [pieces lo..hi] [heads lo..hi]
value     ::= "own" | "held" | a name
hop       ::= Shift(an expression per axis)
            | Root(axis, root)        one coordinate to the others; sums the other way
guard     ::= axis in lo..hi & ... [of the receiver]     cyclic if lo > hi; axis -1 is the rank
            | FIRST[rank] <= t <= LAST[rank] | rank in a list
expr      ::= (c + b * ((t - phase) // period) + a . coordinates) mod m | TABLE[expr]
kind      ::= full | causal | strict | tiles

A causal rectangle has the same number of keys and queries, and allows key index <= query index; a
strict rectangle allows key index < query index. `tiles` stands for all pairs of the parts that the
mask allows, in any number of rectangles; rectangles omit blocks without an allowed pair.

In a step, every message reads its source as of the start of the step; then the results of attends
are added, then the arrivals. A value that was sent is readable from the next step on ("age" t -
lag). So is a gathered or exchanged value, which includes the part that each rank kept. The value of
an exchange of a single step stays readable and has no age.

A message of sums (OUT, DQ, DKV) names the input values that the sums belong to: `DKV for A @ t - 1`
is the rank's accumulator for the blocks that A had one step ago. `into` names the value of the
receiver's accumulator at the end of the step, when the message is added: "own" if the receiver owns
the blocks; none if the blocks are parts of several values. Sums follow their value.

`held` are the initial copies (`Plan.start`), with the rank's own blocks of the same rectangles. If
an attend's queries arrive in a message without Q (a backward pass that kept Q and OUT from the
forward pass), `held` has Q and OUT of the same blocks.
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
    table: tuple[int, ...] = ()  # if any, the other fields give an index into the table
    period: int = 1
    phase: int = 0

    def at(self, t: int, coordinates: Ints) -> Ints:
        """Returns the value in step t on ranks with the given coordinates [n, axes + 1]: [n]."""
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
    """Pieces and heads of a value; None means all."""

    value: str
    lag: int = 0  # steps since the value arrived
    pieces: Ends | None = None
    heads: Ends | None = None


@dataclass(frozen=True, slots=True)
class Guard:
    """The ranks that run a statement; all by default."""

    bounds: tuple[tuple[int, Expr | None, Expr | None], ...] = ()  # axis, lo, hi; None: no bound
    spans: tuple[tuple[int, int], ...] = ()  # first and last step of each rank
    ranks: tuple[int, ...] = ()  # in any order
    receiver: bool = False  # True: the guard is on receivers, not on senders

    def at(self, t: int, coordinates: Ints) -> NDArray[np.bool_]:
        """Marks the ranks of the given coordinates [n, axes + 1] that run in step t: [n]."""
        runs = np.ones(len(coordinates), np.bool_)
        for axis, low, high in self.bounds:
            x = coordinates[:, axis]
            lo, hi = (e.at(t, coordinates) if e else None for e in (low, high))
            above = runs if lo is None else lo <= x
            below = runs if hi is None else x <= hi
            is_cyclic = lo is not None and hi is not None and lo > hi
            runs = runs & np.where(is_cyclic, above | below, above & below)
        rank = coordinates[:, -1]
        if self.spans:
            first, last = np.array(self.spans, np.intp)[rank].T
            runs &= (first <= t) & (t <= last)
        if self.ranks:
            runs &= np.isin(rank, self.ranks)
        return runs

    @property
    def tabled(self) -> bool:
        """True if the guard is data instead of a formula."""
        return bool(self.spans or self.ranks)


@dataclass(frozen=True, slots=True)
class When:
    """The steps in which a statement runs, and the ranks that run it."""

    first: int
    last: int
    every: int = 1  # runs in `width` of every `every` steps
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
    """Each rank sends to the rank at a distance along each axis, cyclically."""

    by: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Root:
    """A broadcast: ranks with the root's coordinate send to the guard's ranks along an axis.

    Sums go to the root, in a reduction.
    """

    axis: int
    root: Expr


Hop = Shift | Root


@dataclass(frozen=True, slots=True)
class Moves:
    """A statement that moves a value: some tensors of one side, all inputs or all sums."""

    when: When
    name: str
    tensors: tuple[str, ...]

    @property
    def side(self) -> str:
        """The side of the tensors."""
        return TENSORS[self.tensors[0]].side

    @property
    def sums(self) -> bool:
        """True for sums, False for inputs."""
        return TENSORS[self.tensors[0]].accumulates


@dataclass(frozen=True, slots=True)
class Start(Moves):
    """A new name for a part, from the first step of `when` on."""

    part: Part


@dataclass(frozen=True, slots=True)
class Send(Moves):
    """One message of some parts per rank."""

    parts: tuple[Part, ...]
    hop: Hop
    into: Part | None = None  # the value that sums are added to, as the receiver names it in step t


@dataclass(frozen=True, slots=True)
class Exchange(Moves):
    """Every rank along an axis gets the receiver's `heads` of every rank's part."""

    part: Part
    axis: int
    heads: Ends | None = None

    @property
    def repeats(self) -> bool:
        """True if the exchange runs in several steps, so that its value has an age."""
        return self.when.last > self.when.first

    @property
    def gathers(self) -> bool:
        """True if all receivers get the same heads: a gather."""
        return not any(e.axes for e in self.heads or ())


@dataclass(frozen=True, slots=True)
class Return(Moves):
    """Sums that go back over an exchange, or sums for held values that go to the owners.

    The messages are a reduce-scatter if all ranks along the axis have the same blocks, otherwise an
    all-to-all. A rank that attended no block of a message has no sums to send (a program sends
    zeros).
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
    """Steps first..last that statements connect, and the statements that begin in these steps."""

    first: int
    last: int
    statements: tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class Loops:
    """The loop form of a plan."""

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
        inside = {t for w in spans for t in range(w.first + 1, w.last + 1)}
        cuts = [t for t in range(self.steps + 1) if t not in inside]
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
