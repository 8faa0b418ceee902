"""lower(rows, kept)   the loops of one pass -> its program: what happens when, for all targets.

A step starts its messages, begins anew the sums that have just left, attends, then waits: for sums
first, which are added where inputs are still what they were when the sums were computed. What has
a name of its own before anything arrives, and accumulators that begin in a loop, come before it.
"""

from collections.abc import Iterator, Sequence, Set
from itertools import pairwise

from ringloom.codegen.conditions import Condition, Every, Steps, condition, holds
from ringloom.codegen.ir import (
    At,
    Choose,
    Clear,
    For,
    Gather,
    Hop,
    Let,
    Message,
    Op,
    Post,
    Program,
    Reduce,
    Register,
    Route,
    Slice,
    Swap,
    SwapBack,
    Wait,
    Zero,
)
from ringloom.codegen.lowering.accumulators import (
    Accumulation,
    Delivery,
    accumulate,
    destination,
    source,
)
from ringloom.codegen.lowering.calls import attends
from ringloom.codegen.lowering.heads import refuse_other_heads
from ringloom.codegen.lowering.keeping import Kept
from ringloom.codegen.lowering.order import copies, scattered, sorts, swapped
from ringloom.codegen.lowering.stale import refuse_stale
from ringloom.codegen.lowering.tensors import refuse_apart
from ringloom.planner.errors import PlanError
from ringloom.planner.ir import ACCUMULATORS
from ringloom.planner.loops import form
from ringloom.planner.loops.expand import Expansion
from ringloom.planner.loops.form import HELD, OWN, Exchange, Expr, Ints, Return, Send, Start, When
from ringloom.planner.masks.mask import SideName

Moving = Send | Return | Exchange


def lower(rows: Expansion, kept: Kept | None = None, padded: bool = False) -> Program:
    """The program of loops; `kept` are the copies that a backward pass begins with.

    `padded`: the target makes pieces equally long by padding, so these may be of several lengths;
    then all attends are tiles, cut by positions. Raises PlanError with what the program IR, or
    this lowering, has no op for.
    """
    return _Lowering(rows, kept or {}, padded).program()


class _Lowering:
    """State while lowering one pass; `defined` are the registers with a value so far."""

    def __init__(self, rows: Expansion, kept: Kept, padded: bool) -> None:
        sizes = [*(rows.plan.partition.side(side).sizes for side in rows.values)]
        self.uneven = any(len({*x.tolist()}) > 1 for x in sizes)
        if self.uneven and not padded:
            raise PlanError("pieces have different numbers of tokens")
        self.tiled = self.uneven or any(map(scattered, map(rows.plan.partition.side, rows.values)))
        self.rows, self.kept, self.loops = rows, kept, rows.loops
        refuse_stale(rows)
        refuse_apart(rows)
        refuse_other_heads(rows)
        self.accumulation: Accumulation = accumulate(rows)
        inputs = (s for s in self.loops.statements if isinstance(s, Moving) and not s.sums)
        self.whens: dict[Moving, When] = {s: s.when for s in inputs}
        for s, when in self.accumulation.deliveries.items():
            self.whens[s] = when
        self.starts = [s for s in self.loops.statements if isinstance(s, Start)]
        self.defined = {Register(side, name) for side in ("q", "kv") for name in (OWN, HELD)}
        self.shapes = dict[Register, tuple[int, int]]()
        for side, values in rows.values.items():
            for (name, _), value in values.named.items():
                self._shape(Register(side, name), value.table)

    def program(self) -> Program:
        """All ops, and what they are about."""
        ops = [op for steps in self._frames() for op in self._frame(steps)]
        if any(Register(of, OWN) not in self.defined for of in ACCUMULATORS[self.rows.plan.pass_]):
            raise PlanError("the mask leaves nothing to compute")
        kept = (Register(side, exchange.name) for side, exchange in self.kept.items())
        pieces = {register: many for register, (many, _) in self.shapes.items()}
        plan, mesh = self.rows.plan, self.loops.mesh
        return Program(plan.pass_, mesh, tuple(ops), tuple(pieces.items()), tuple(kept))

    def _shape(self, register: Register, table: Ints) -> None:
        """Notes pieces and slices of heads of a value, which have to be the same on all ranks."""
        here = table >= 0
        counts = [here.any(axis=axis).sum(axis=1)[here.any(axis=(1, 2))] for axis in (2, 1)]
        shape = int(counts[0][0]), int(counts[1][0])
        alike = all((count == n).all() for count, n in zip(counts, shape, strict=True))
        if not alike or self.shapes.get(register, shape) != shape:
            raise PlanError(f"ranks have different numbers of pieces of {register.value}")
        self.shapes[register] = shape

    # ---- steps

    def _frames(self) -> Iterator[range]:
        """The steps in runs: loops, and single steps in which only sums move or values begin."""
        for section in self.loops.sections():
            first, last = section.first, section.last
            busy = [t for t in range(first, last + 1) if self._busy(t)]
            end = busy[-1] if busy else first
            begins = {
                w.first + 1
                for s, w in self.whens.items()
                if isinstance(s, Exchange) and first <= w.first < last
            }
            cuts = {first, last + 1, *begins, *range(end + 1, last + 1)}
            yield from (range(a, b) for a, b in pairwise(sorted(cuts)))

    def _busy(self, t: int) -> bool:
        """True if more happens in a step than that sums arrive."""
        running = (s for s in self.loops.statements if s.when.on(t))
        return not all(isinstance(s, Delivery) and s.sums for s in running)

    def _frame(self, steps: range) -> list[Op]:
        """The ops of a run of steps."""
        names, later, body = self._names(steps)
        moving = [s for s, when in self.whens.items() if any(map(when.on, steps))]
        messages = [(s, self._message(s, steps)) for s in moving]
        waits = [self._wait(s, message) for s, message in messages]
        calls = [c for c in self.accumulation.calls if any(map(c.when.on, steps))]
        added = [r for c in calls for r in c.sums] + [w.into.register for w in waits if w.adds]
        taken = [m.source for s, m in messages if s.sums and _whole(m.source)]
        gone = dict.fromkeys(part.register for part in taken)
        kept = {r for r in gone if self._stays(r, steps)}
        anew = [r for r in gone if len(steps) > 1 or r in added or r in kept]
        begun = [r for r in dict.fromkeys((*gone, *added)) if r not in self.defined]
        before = [*names, *self._aliases(later, waits, begun), *map(self._zero, begun)]
        body += [Post(message) for _, message in messages]
        body += self._begun_anew(messages, anew, kept)
        body += attends(self.rows, calls, steps, self.tiled, self._in_order)
        waits.sort(key=lambda wait: not wait.into.register.accumulates)
        body += waits
        body += self._cleared(messages, added, steps)
        self.defined |= {*begun, *added, *(w.into.register for w in waits)}
        self.defined -= {r for r in gone if r not in anew and r not in added}
        return [*before, At(steps[0], tuple(body)) if len(steps) == 1 else For(steps, tuple(body))]

    # ---- inputs

    def _names(self, steps: range) -> tuple[list[Let], list[Let], list[Op]]:
        """The names that values get: before the steps, perhaps there, and in one of the steps."""
        before, later, body = list[Let](), list[Let](), list[Op]()
        for s in (s for s in self.starts if any(map(s.when.on, steps))):
            part = Slice(Register(s.side, s.part.value), s.part.pieces, s.part.heads)
            op = Let(Register(s.side, s.name), part)
            early = s.when.first == steps[0]
            early |= s.part.value == OWN and not self._brought(s, steps[0])
            if not self._everywhere(part, s.when.first):
                raise PlanError(f"on some ranks {s.name} begins with nothing")
            (before if early else later).append(op)
            if not early or len(s.when.steps) > 1:
                body.append(Choose(((condition(s.when), op),)))
        self.defined.update(op.into for op in before)
        return before, later, body

    def _everywhere(self, part: Slice, t: int) -> bool:
        """True if all ranks have what a slice takes in a step."""
        where = self.rows.coordinates
        each = zip((part.pieces, part.heads), self.shapes[part.register], strict=True)
        return all(
            (ends[0].at(t, where) >= 0).all() and (ends[1].at(t, where) < count).all()
            for ends, count in each
            if ends
        )

    def _brought(self, start: Start, first: int) -> bool:
        """True if something has come under a name, from a step on, before the name is given."""
        others = [*self.starts, *(s for s in self.whens if not s.sums)]
        return any(
            s.when.on(t)
            for s in others
            if s is not start and (s.side, s.name) == (start.side, start.name)
            for t in range(first, start.when.first)
        )

    def _aliases(self, names: list[Let], waits: Sequence[Wait], begun: list[Register]) -> list[Op]:
        """Names for inputs that come later, or to some ranks only: until then, for others."""
        shapes = {Register(r.side, r.value) for r in begun}
        for wait in (w for w in waits if not w.into.register.accumulates):
            if wait.partial or wait.into.register in shapes:
                names.append(self._standing(wait))
        made = list[Op]()
        while new := [
            op for op in names if op.into not in self.defined and op.source.register in self.defined
        ]:
            if not self._everywhere(new[0].source, 0):
                raise PlanError(f"some ranks have nothing that stands for {new[0].into.value}")
            made.append(new[0])
            self.defined.add(new[0].into)
        return made

    def _standing(self, wait: Wait) -> Let:
        """Names for an arrival, before it comes, as many pieces and heads as come: the first."""
        part, into = wait.message.source, wait.into.register
        pieces, heads = ((Expr(), Expr(n - 1)) for n in self.shapes[into])
        return Let(into, Slice(part.register, part.pieces and pieces, part.heads and heads))

    # ---- messages

    def _message(self, s: Moving, steps: range) -> Message:
        if s.sums:
            assert isinstance(s, Delivery)
            sent = source(s)
            complete = self.accumulation.completes(s) and _whole(sent)
        else:
            sent, complete = self._input(s), False
        route, when = self._route(s), self.whens[s]
        complete &= not (isinstance(route, Reduce) and s.tensors == ("OUT",))
        complete &= not (isinstance(route, SwapBack) and route.copies > 1)
        on = self._on(route, when)
        every = all(holds((test,), steps, self.rows.coordinates).all() for test in on)
        handle = f"{s.name}.{self.loops.statements.index(s)}"
        receiver = when.guard.receiver
        on = () if every else on
        exchanged = (
            Register(s.side, self._exchanged(s)) if isinstance(s, Exchange | Return) else None
        )
        return Message(handle, s.tensors, sent, route, on, receiver, complete, exchanged)

    def _exchanged(self, s: Exchange | Return) -> str:
        """The value whose tokens an exchange brings, or brought."""
        return s.part.value if isinstance(s, Exchange) else self.loops.source(s)

    def _on(self, route: Route, when: When) -> Condition:
        """The ranks that send, and when: all along an axis take part in what is not a hop."""
        asked = condition(when)
        if isinstance(route, Hop):
            return asked
        if isinstance(route, form.Root) or when.guard == form.Guard():
            return tuple(x for x in asked if isinstance(x, Steps | Every))
        raise PlanError("some ranks take no part in an exchange along their axis")

    def _input(self, s: Moving) -> Slice:
        """The inputs that a message takes."""
        if isinstance(s, Exchange):
            heads, by = (s.heads, 1) if s.gathers else swapped(self.rows, s)
            return Slice(Register(s.side, s.part.value), s.part.pieces, heads, by)
        assert isinstance(s, Send)
        if len(s.parts) > 1:
            raise PlanError("a message carries several values")
        part = s.parts[0]
        return Slice(Register(s.side, part.value), part.pieces, part.heads)

    def _wait(self, s: Moving, message: Message) -> Wait:
        if s.sums:
            assert isinstance(s, Delivery)
            into = destination(self.rows, s)
        else:
            into = Slice(Register(s.side, s.name))
        to_root = isinstance(message.route, form.Root) and s.sums
        replaces = isinstance(s, Delivery) and s.sums and self.accumulation.replaces(s)
        replaces &= message.complete
        return Wait(message, into, to_root or bool(message.on), replaces)

    def _route(self, s: Moving) -> Route:
        if isinstance(s, Send):
            return Hop(s.hop.by) if isinstance(s.hop, form.Shift) else s.hop
        return self._exchange(s)

    def _exchange(self, s: Exchange | Return) -> Route:
        """The route of an exchange, or of the sums that go back over one."""
        exchange = s if isinstance(s, Exchange) else self._forth(s)
        sort = sorts(self.rows, exchange)
        if sort and self.uneven:
            raise PlanError("exchanged pieces are not of one length and in order")
        forth = s is exchange
        if exchange.gathers:
            return Gather(s.axis, sort) if forth else Reduce(s.axis, sort)
        many = copies(self.rows, exchange)
        return Swap(s.axis, sort, many) if forth else SwapBack(s.axis, sort, many)

    def _forth(self, s: Return) -> Exchange:
        """The exchange over which sums go back, of the forward pass for what that has kept."""
        return self.loops.exchanges.get(s.name) or self.kept["kv" if s.side == "kv" else "q"]

    def _in_order(self, side: SideName, value: str) -> bool:
        """True if an exchange has brought the tokens of a value into the order of the sequence."""
        said = {self._brings_in_order(side, origin) for origin in self._origins(side, value)}
        if len(said) > 1:
            raise PlanError(
                f"some tokens of {value} are in the order of the sequence, some are not"
            )
        return said.pop()

    def _brings_in_order(self, side: SideName, value: str) -> bool:
        exchange = self.kept.get(side) if value == HELD else self.loops.exchanges.get(value)
        return exchange is not None and sorts(self.rows, exchange)

    def _origins(self, side: SideName, value: str) -> set[str]:
        """The values that exchanges bring, or that ranks have, which come under a name."""
        starts = [(s.name, s.part.value) for s in self.starts if s.side == side]
        sends = (s for s in self.whens if isinstance(s, Send) and not s.sums and s.side == side)
        named = [*starts, *((s.name, part.value) for s in sends for part in s.parts)]
        names = {value}
        while new := {part for name, part in named if name in names} - names:
            names |= new
        given = {name for name, part in named if name != part}
        return {name for name in names if name not in given} or {value}

    # ---- sums

    def _zero(self, sums: Register) -> Zero:
        """New accumulators, in the shape of what ranks own unless the value has another one."""
        own, value = Register(sums.side, OWN), Register(sums.side, sums.value)
        return Zero(sums, own if self.shapes[value] == self.shapes[own] else value)

    def _stays(self, sums: Register, steps: range) -> bool:
        """True if sums that leave in some of the steps stay in others, or on some ranks."""
        return sums in self.accumulation.kept or bool({*steps} & {*self.accumulation.idle[sums]})

    def _begun_anew(
        self,
        messages: Sequence[tuple[Moving, Message]],
        anew: Sequence[Register],
        kept: Set[Register],
    ) -> list[Op]:
        """New accumulators for sums that have left; of those that some ranks keep, for others."""
        made = list[Op]()
        for register in anew:
            zero = self._zero(register)
            if register not in kept:
                made.append(zero)
                continue
            taking = [m for _, m in messages if m.source == Slice(register)]
            if any(m.of_receiver for m in taking):
                raise PlanError("ranks keep sums where others send theirs to some receivers")
            made += [Choose(((m.on, zero),)) if m.on else zero for m in taking]
        return made

    def _cleared(
        self, messages: Sequence[tuple[Moving, Message]], added: Sequence[Register], steps: range
    ) -> list[Op]:
        """Ops that zero the pieces of sums that have left, where others stay."""
        parts = [m for s, m in messages if s.sums and not _whole(m.source)]
        if any(m.source.register in added or m.of_receiver for m in parts):
            raise PlanError("a part of some sums leaves in a step in which others are added")
        if parts and len(steps) > 1:
            raise PlanError("a part of some sums leaves in a loop")
        clears = [(m.on, Clear(m.source)) for m in parts]
        return [Choose(((on, op),)) if on else op for on, op in clears]


def _whole(part: Slice) -> bool:
    return part.pieces is None and part.heads is None
