"""The program IR: what every rank does in one pass, before a target prints it.

program   ::= op ...                              one pass; all ranks run the same ops
op        ::= Let(into, source)                   another name for a slice of inputs
            | Zero(sums, like)                    zero accumulators in the shape of a register
            | Clear(sums)                         zero some pieces of accumulators in place
            | Post(message)                       start a message
            | Wait(message, into)                 bind inputs, add to sums, or replace sums
            | Attend(q, kv, kind, sums)           slices x slices, added to sums
            | Choose((condition, op) ...)         the first case whose condition holds, if any
            | For(steps, op ...)                  the ops once per step
            | At(step, op ...)                    the ops in one step
message   ::= Message(handle, tensors, source, route, on)      which ranks send it, and when
route     ::= Hop(by)                             the same distance for all ranks, cyclically
            | Root(axis, root)                    one rank to all along an axis; sums, all to one
            | Gather(axis) | Reduce(axis)         gathers tokens along an axis; returns their sums
            | Swap(axis) | SwapBack(axis)         the same, but each rank gets some of the heads
register  ::= (q | kv, value) for inputs, (OUT | DQ | DKV, value) for sums
slice     ::= register [pieces lo..hi] [heads lo..hi by ...]
kind      ::= full | causal | strict              one kernel call
            | tiles                               the allowed pairs of the tokens at two places
place     ::= the tokens of the ranks at given coordinates, in rank order or sorted by position
condition ::= test & ...                          empty: always
test      ::= Steps(first, last) | Bound(axis, low, high) | Span(first, last) | Listed(ranks)

Numbers are expressions of the loop form, and conditions are data: both can be evaluated for any
step and rank, and printed. A register has the same number of pieces and head slices on every rank.
In a step, messages start, sums that were sent are reset, attends add, then ranks wait. They wait
for sums first, because sums are added while inputs are unchanged. `reads` and `writes` give the
registers of every op.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import gcd
from typing import Literal, NamedTuple

from ringloom.codegen.conditions import Condition
from ringloom.planner.ir import TENSORS, Pass
from ringloom.planner.loops.form import OWN, Ends, Expr, Root
from ringloom.planner.masks.mask import SideName

AttendKind = Literal["full", "causal", "strict", "tiles"]


class Register(NamedTuple):
    """A value of a program: inputs of one side, or the sums of one tensor for such inputs."""

    of: str
    value: str

    @property
    def accumulates(self) -> bool:
        """True for sums, False for inputs."""
        return self.of in TENSORS

    @property
    def side(self) -> SideName:
        """The side of its blocks."""
        return TENSORS[self.of].side if self.of in TENSORS else "q" if self.of == "q" else "kv"


# ---- routes and messages


@dataclass(frozen=True, slots=True)
class Hop:
    """A message from each rank to the rank at this distance along each axis, cyclically."""

    by: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Gather:
    """An all-gather of tokens along an axis, in rank order or (`sort`) by position."""

    axis: int
    sort: bool = False


@dataclass(frozen=True, slots=True)
class Reduce:
    """A reduce-scatter of sums for gathered tokens, to the ranks that own them."""

    axis: int
    sort: bool = False


@dataclass(frozen=True, slots=True)
class Swap:
    """An all-to-all that brings each rank the tokens of an axis for some of the heads.

    Each head is repeated `copies` times, if there are fewer heads than ranks.
    """

    axis: int
    sort: bool = False
    copies: int = 1


@dataclass(frozen=True, slots=True)
class SwapBack:
    """An all-to-all that returns sums for swapped tokens to their owners, and adds copies."""

    axis: int
    sort: bool = False
    copies: int = 1


Exchange = Gather | Reduce | Swap | SwapBack
Route = Hop | Root | Exchange


@dataclass(frozen=True, slots=True)
class Slice:
    """Some pieces and head slices of a register; None means all.

    Head slices are taken from the first to the last in steps of `by`.
    """

    register: Register
    pieces: Ends | None = None
    heads: Ends | None = None
    by: int = 1


@dataclass(frozen=True, slots=True)
class Message:
    """Data that ranks send over a route in the same step; each rank sends at most once.

    `on` says which ranks send and when, or with `of_receiver` which ranks receive. `complete` sums
    are final, so they may be sent in the dtype of the inputs. `exchanged` are the inputs of a
    gather or swap, also if the message returns their sums.
    """

    handle: str
    tensors: tuple[str, ...]
    source: Slice
    route: Route
    on: Condition = ()
    of_receiver: bool = False
    complete: bool = False
    exchanged: Register | None = None


# ---- ops


@dataclass(frozen=True, slots=True)
class Let:
    """Binds a register to a slice of inputs."""

    into: Register
    source: Slice


@dataclass(frozen=True, slots=True)
class Zero:
    """Creates zero accumulators in the shape of a register of inputs."""

    sums: Register
    like: Register


@dataclass(frozen=True, slots=True)
class Clear:
    """Zeroes some pieces of accumulators in place."""

    sums: Slice


@dataclass(frozen=True, slots=True)
class Post:
    """Starts a message."""

    message: Message


@dataclass(frozen=True, slots=True)
class Wait:
    """Waits for a message, then binds inputs or adds to sums.

    `partial`: some ranks receive nothing in some steps. `replaces`: the received sums replace the
    register. `starts`: the op also starts the message.
    """

    message: Message
    into: Slice
    partial: bool = False
    replaces: bool = False
    starts: bool = False

    @property
    def adds(self) -> bool:
        """True if it adds to existing sums."""
        return self.into.register.accumulates and not self.replaces


@dataclass(frozen=True, slots=True)
class Place:
    """The tokens of the ranks at these coordinates; None means all along an axis.

    Coordinates are cyclic. `pieces` selects some of each rank's own pieces; None means all. Tokens
    are in rank order or, with `sort`, in the order of the sequence.
    """

    at: tuple[Expr | None, ...]
    pieces: Ends | None = None
    sort: bool = False


@dataclass(frozen=True, slots=True)
class Attend:
    """Attends queries to keys and adds to sums; `places`: the tokens that `tiles` are cut from."""

    q: Slice
    kv: Slice
    kind: AttendKind
    sums: tuple[Slice, ...]
    places: tuple[Place, Place] | None = None


@dataclass(frozen=True, slots=True)
class Choose:
    """Runs the first case whose condition holds."""

    cases: tuple[tuple[Condition, "Op"], ...]


@dataclass(frozen=True, slots=True)
class For:
    """Runs ops once per step."""

    steps: range
    body: tuple["Op", ...]


@dataclass(frozen=True, slots=True)
class At:
    """Runs ops in one step."""

    step: int
    body: tuple["Op", ...]


Op = Let | Zero | Clear | Post | Wait | Attend | Choose | For | At


@dataclass(frozen=True, slots=True)
class Program:
    """The ops of one pass.

    `pieces`: the number of pieces of each register of inputs. `kept`: registers that the forward
    pass leaves for the backward pass.
    """

    pass_: Pass
    mesh: tuple[int, ...]
    ops: tuple[Op, ...]
    pieces: tuple[tuple[Register, int], ...]
    kept: tuple[Register, ...] = ()

    def pieces_of(self, register: Register) -> int:
        """Returns the number of pieces of a register, or of the inputs that sums are for."""
        return dict(self.pieces)[Register(register.side, register.value)]

    @property
    def unit(self) -> int:
        """The greatest common divisor of the ends of all slices, in pieces."""
        numbers = [0]
        for register, (low, high) in (cut for op in walk(self.ops) for cut in cuts(op)):
            numbers += [low.constant, high.constant + 1, low.step, high.step]
            numbers += [*low.axes, *high.axes, self.pieces_of(register)]
        return gcd(*numbers) or 1


# ---- what ops read and write


def inner(op: Op) -> Iterator[Op]:
    """Yields the ops directly inside an op."""
    match op:
        case Choose():
            yield from (case for _, case in op.cases)
        case For() | At():
            yield from op.body
        case Let() | Zero() | Clear() | Post() | Wait() | Attend():
            pass


def walk(ops: Iterable[Op]) -> Iterator[Op]:
    """Yields all ops, each followed by the ops inside it."""
    for op in ops:
        yield op
        yield from walk(inner(op))


def slices(op: Op) -> tuple[Slice, ...]:
    """Returns the slices that an op itself names."""
    match op:
        case Let():
            return (op.source,)
        case Clear():
            return (op.sums,)
        case Post():
            return (op.message.source,)
        case Wait():
            return op.message.source, op.into
        case Attend():
            return op.q, op.kv, *op.sums
        case Zero() | Choose() | For() | At():
            return ()


def cuts(op: Op) -> tuple[tuple[Register, Ends], ...]:
    """Returns the pieces that an op selects from registers, and from shards at places."""
    selected = [(part.register, part.pieces) for part in slices(op) if part.pieces]
    if isinstance(op, Attend) and op.places:
        sides: tuple[SideName, SideName] = ("q", "kv")
        for side, place in zip(sides, op.places, strict=True):
            selected += [(Register(side, OWN), place.pieces)] if place.pieces else []
    return tuple(selected)


def reads(op: Op) -> tuple[Register, ...]:
    """Returns the registers whose values an op needs."""
    match op:
        case Let():
            return (op.source.register,)
        case Zero():
            return (op.like,)
        case Clear():
            return (op.sums.register,)
        case Post():
            return (op.message.source.register,)
        case Wait():
            source = (op.message.source.register,) if op.starts else ()
            return (*source, *((op.into.register,) if op.adds or op.partial else ()))
        case Attend():
            return op.q.register, op.kv.register, *(s.register for s in op.sums)
        case Choose() | For() | At():
            return tuple(dict.fromkeys(r for x in inner(op) for r in reads(x)))


def writes(op: Op) -> tuple[Register, ...]:
    """Returns the registers that an op binds or changes."""
    match op:
        case Let():
            return (op.into,)
        case Zero():
            return (op.sums,)
        case Clear():
            return (op.sums.register,)
        case Post():
            return ()
        case Wait():
            return (op.into.register,)
        case Attend():
            return tuple(s.register for s in op.sums)
        case Choose() | For() | At():
            return tuple(dict.fromkeys(r for x in inner(op) for r in writes(x)))


def with_body(op: Op, ops: Sequence[Op]) -> Op:
    """Returns the op with the ops directly inside it replaced."""
    match op:
        case Choose():
            pairs = zip(op.cases, ops, strict=True)
            return replace(op, cases=tuple((condition, x) for (condition, _), x in pairs))
        case For() | At():
            return replace(op, body=tuple(ops))
        case Let() | Zero() | Clear() | Post() | Wait() | Attend():
            return op
