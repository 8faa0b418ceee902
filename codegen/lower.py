"""lower(rows, kept)   turns the loops of one pass into a program, the same for all targets.

A step starts its messages, resets the sums that have just been sent, attends, then waits. It waits
for sums first, because they are added while inputs are unchanged. Names that exist before anything
arrives are defined before a loop, and so are the accumulators that start in it.
"""

from collections.abc import Iterator, Sequence, Set
from itertools import pairwise

from ringloom.codegen.conditions import Condition, condition, holds, steps_of
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
from ringloom.codegen.lowering.calls import lower_attends
from ringloom.codegen.lowering.keeping import Kept
from ringloom.codegen.lowering.order import copy_count, is_scattered, needs_sorting, swapped_heads
from ringloom.codegen.lowering.refusals import refuse
from ringloom.planner.errors import PlanError
from ringloom.planner.ir import ACCUMULATORS
from ringloom.planner.loops import form
from ringloom.planner.loops.expand import Expansion
from ringloom.planner.loops.form import HELD, OWN, Exchange, Expr, Ints, Return, Send, Start, When
from ringloom.planner.masks.mask import SideName

Moving = Send | Return | Exchange


def lower(rows: Expansion, kept: Kept | None = None, padded: bool = False) -> Program:
    """Lowers loops; `kept` are the copies that a backward pass begins with.

    `padded`: the target pads pieces to equal length, so their lengths may differ; if they do, all
    attends are tiles, cut by positions. Raises PlanError for loops that no ops can express.
    """
    return _Lowering(rows, kept or {}, padded).program()


class _Lowering:
    """The state while one pass is lowered; `defined` are the registers that have a value so far."""

    def __init__(self, rows: Expansion, kept: Kept, padded: bool) -> None:
        sides = [*map(rows.plan.partition.side, rows.values)]
        self.uneven = any(len({*side.sizes.tolist()}) > 1 for side in sides)
        shards = [side.shards(rows.plan.ranks) for side in sides]
        unequal_shards = any(len({*map(len, tokens)}) > 1 for tokens in shards)
        if (self.uneven or unequal_shards) and not padded:
            raise PlanError("ranks hold different numbers of tokens")
        self.tiled = self.uneven or any(map(is_scattered, sides))
        self.rows, self.kept, self.loops = rows, kept, rows.loops
        refuse(rows)
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
        """Lowers the whole pass."""
        ops = [op for steps in self._runs() for op in self._lower_run(steps)]
        if any(Register(of, OWN) not in self.defined for of in ACCUMULATORS[self.rows.plan.pass_]):
            raise PlanError("the mask leaves nothing to compute")
        kept = (Register(side, exchange.name) for side, exchange in self.kept.items())
        pieces = {register: count for register, (count, _) in self.shapes.items()}
        plan, mesh = self.rows.plan, self.loops.mesh
        return Program(plan.pass_, mesh, tuple(ops), tuple(pieces.items()), tuple(kept))

    def _shape(self, register: Register, table: Ints) -> None:
        """Records the numbers of pieces and head slices of a value, the same on all ranks."""
        present = table >= 0
        counts = [present.any(axis=axis).sum(axis=1)[present.any(axis=(1, 2))] for axis in (2, 1)]
        shape = int(counts[0][0]), int(counts[1][0])
        equal = all((count == n).all() for count, n in zip(counts, shape, strict=True))
        if not equal or self.shapes.get(register, shape) != shape:
            raise PlanError(f"ranks have different numbers of pieces of {register.value}")
        self.shapes[register] = shape

    # ---- steps

    def _runs(self) -> Iterator[range]:
        """Yields runs of steps: loops, and single steps at the end in which only sums arrive.

        A run also ends with the first step of an exchange.
        """
        for section in self.loops.sections():
            first, last = section.first, section.last
            busy_steps = [t for t in range(first, last + 1) if self._is_busy(t)]
            end = busy_steps[-1] if busy_steps else first
            starts = {
                w.first + 1
                for s, w in self.whens.items()
                if isinstance(s, Exchange) and first <= w.first < last
            }
            ends = {first, last + 1, *starts, *range(end + 1, last + 1)}
            yield from (range(a, b) for a, b in pairwise(sorted(ends)))

    def _is_busy(self, t: int) -> bool:
        """Returns True if a step does more than move sums."""
        running = (s for s in self.loops.statements if s.when.on(t))
        return not all(isinstance(s, Delivery) and s.sums for s in running)

    def _lower_run(self, steps: range) -> list[Op]:
        """Lowers a run of steps."""
        names, candidates, body = self._lower_starts(steps)
        moving = [s for s, when in self.whens.items() if any(map(when.on, steps))]
        messages = [(s, self._message(s, steps)) for s in moving]
        waits = [self._wait(s, message) for s, message in messages]
        calls = [c for c in self.accumulation.calls if any(map(c.when.on, steps))]
        added = [r for c in calls for r in c.sums] + [w.into.register for w in waits if w.adds]
        sources = [m.source for s, m in messages if s.sums and _is_whole(m.source)]
        sent_sums = dict.fromkeys(part.register for part in sources)
        kept_sums = {r for r in sent_sums if self._stays(r, steps)}
        reset_sums = [r for r in sent_sums if len(steps) > 1 or r in added or r in kept_sums]
        new = [r for r in dict.fromkeys((*sent_sums, *added)) if r not in self.defined]
        before = [*names, *self._placeholders(candidates, waits, new), *map(self._zero, new)]
        body += [Post(message) for _, message in messages]
        body += self._reset_sums(messages, reset_sums, kept_sums)
        body += lower_attends(self.rows, calls, steps, self.tiled, self._is_sorted)
        waits.sort(key=lambda wait: not wait.into.register.accumulates)
        body += waits
        body += self._clear_pieces(messages, added, steps)
        self.defined |= {*new, *added, *(w.into.register for w in waits)}
        self.defined -= {r for r in sent_sums if r not in reset_sums and r not in added}
        return [*before, At(steps[0], tuple(body)) if len(steps) == 1 else For(steps, tuple(body))]

    # ---- inputs

    def _lower_starts(self, steps: range) -> tuple[list[Let], list[Let], list[Op]]:
        """Lowers starts to ops before the steps, candidates for these, and ops in the steps."""
        before, candidates, body = list[Let](), list[Let](), list[Op]()
        for s in (s for s in self.starts if any(map(s.when.on, steps))):
            part = Slice(Register(s.side, s.part.value), s.part.pieces, s.part.heads)
            op = Let(Register(s.side, s.name), part)
            defined_before = s.when.first == steps[0]
            defined_before |= s.part.value == OWN and not self._has_earlier_value(s, steps[0])
            if not self._exists_everywhere(part, s.when.first):
                raise PlanError(f"{s.name} has no first value on some ranks")
            (before if defined_before else candidates).append(op)
            if not defined_before or len(s.when.steps) > 1:
                body.append(Choose(((condition(s.when), op),)))
        self.defined.update(op.into for op in before)
        return before, candidates, body

    def _exists_everywhere(self, part: Slice, t: int) -> bool:
        """Returns True if all ranks have the pieces and heads of a slice in a step."""
        coordinates = self.rows.coordinates
        selections = zip((part.pieces, part.heads), self.shapes[part.register], strict=True)
        return all(
            (ends[0].at(t, coordinates) >= 0).all() and (ends[1].at(t, coordinates) < count).all()
            for ends, count in selections
            if ends
        )

    def _has_earlier_value(self, start: Start, first: int) -> bool:
        """Returns True if the name gets another value between step `first` and its start."""
        others = [*self.starts, *(s for s in self.whens if not s.sums)]
        return any(
            s.when.on(t)
            for s in others
            if s is not start and (s.side, s.name) == (start.side, start.name)
            for t in range(first, start.when.first)
        )

    def _placeholders(
        self, names: list[Let], waits: Sequence[Wait], sums: list[Register]
    ) -> list[Op]:
        """Binds inputs that arrive later, or only on some ranks, to existing inputs until then."""
        shapes = {Register(r.side, r.value) for r in sums}
        for wait in (w for w in waits if not w.into.register.accumulates):
            if wait.partial or wait.into.register in shapes:
                names.append(self._placeholder(wait))
        ops = list[Op]()
        while ready := [
            op for op in names if op.into not in self.defined and op.source.register in self.defined
        ]:
            if not self._exists_everywhere(ready[0].source, 0):
                raise PlanError(f"some ranks have no placeholder for {ready[0].into.value}")
            ops.append(ready[0])
            self.defined.add(ready[0].into)
        return ops

    def _placeholder(self, wait: Wait) -> Let:
        """Binds an arrival to the first pieces and heads of its source, as many as arrive."""
        part, into = wait.message.source, wait.into.register
        pieces, heads = ((Expr(), Expr(n - 1)) for n in self.shapes[into])
        return Let(into, Slice(part.register, part.pieces and pieces, part.heads and heads))

    # ---- messages

    def _message(self, s: Moving, steps: range) -> Message:
        if s.sums:
            assert isinstance(s, Delivery)
            part = source(s)
            complete = self.accumulation.completes(s) and _is_whole(part)
        else:
            part, complete = self._input(s), False
        route, when = self._route(s), self.whens[s]
        complete &= not (isinstance(route, Reduce) and s.tensors == ("OUT",))
        complete &= not (isinstance(route, SwapBack) and route.copies > 1)
        on = self._condition(route, when)
        always = all(holds((test,), steps, self.rows.coordinates).all() for test in on)
        handle = f"{s.name}.{self.loops.statements.index(s)}"
        receiver = when.guard.receiver
        on = () if always else on
        exchanged = (
            Register(s.side, self._exchanged(s)) if isinstance(s, Exchange | Return) else None
        )
        return Message(handle, s.tensors, part, route, on, receiver, complete, exchanged)

    def _exchanged(self, s: Exchange | Return) -> str:
        """Returns the value that an exchange takes, or took if its sums go back."""
        return s.part.value if isinstance(s, Exchange) else self.loops.source(s)

    def _condition(self, route: Route, when: When) -> Condition:
        """Returns the steps and ranks that send; on a route other than a hop, all ranks do."""
        tests = condition(when)
        if isinstance(route, Hop):
            return tests
        if isinstance(route, form.Root) or when.guard == form.Guard():
            return steps_of(tests)
        raise PlanError("some ranks take no part in an exchange along their axis")

    def _input(self, s: Moving) -> Slice:
        """Returns the inputs that a message sends."""
        if isinstance(s, Exchange):
            heads, by = (s.heads, 1) if s.gathers else swapped_heads(self.rows, s)
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
        """Returns the route of an exchange, or of the sums that go back over it."""
        exchange = s if isinstance(s, Exchange) else self._undone_exchange(s)
        sort = needs_sorting(self.rows, exchange)
        if sort and self.uneven:
            raise PlanError("exchanged pieces differ in length and are not in sequence order")
        forward = s is exchange
        if exchange.gathers:
            return Gather(s.axis, sort) if forward else Reduce(s.axis, sort)
        copies = copy_count(self.rows, exchange)
        return Swap(s.axis, sort, copies) if forward else SwapBack(s.axis, sort, copies)

    def _undone_exchange(self, s: Return) -> Exchange:
        """Returns the exchange whose sums go back; one of the forward pass if its copies stayed."""
        return self.loops.exchanges.get(s.name) or self.kept["kv" if s.side == "kv" else "q"]

    def _is_sorted(self, side: SideName, value: str) -> bool:
        """Returns True if an exchange has sorted the tokens of a value by position."""
        flags = {self._sorts(side, origin) for origin in self._origins(side, value)}
        if len(flags) > 1:
            raise PlanError(f"some tokens of {value} are in sequence order, others are not")
        return flags.pop()

    def _sorts(self, side: SideName, value: str) -> bool:
        exchange = self.kept.get(side) if value == HELD else self.loops.exchanges.get(value)
        return exchange is not None and needs_sorting(self.rows, exchange)

    def _origins(self, side: SideName, value: str) -> set[str]:
        """Returns the values that a name stands for: owned, or brought by exchanges."""
        starts = [(s.name, s.part.value) for s in self.starts if s.side == side]
        sends = (s for s in self.whens if isinstance(s, Send) and not s.sums and s.side == side)
        named = [*starts, *((s.name, part.value) for s in sends for part in s.parts)]
        names = {value}
        while new := {part for name, part in named if name in names} - names:
            names |= new
        derived = {name for name, part in named if name != part}
        return names - derived or {value}

    # ---- sums

    def _zero(self, sums: Register) -> Zero:
        """Zeroes accumulators in the shape of a rank's own blocks, or of a value that differs."""
        own, value = Register(sums.side, OWN), Register(sums.side, sums.value)
        return Zero(sums, own if self.shapes[value] == self.shapes[own] else value)

    def _stays(self, sums: Register, steps: range) -> bool:
        """Returns True if sums that leave in some steps stay in others, or on some ranks."""
        return sums in self.accumulation.kept or bool({*steps} & {*self.accumulation.idle[sums]})

    def _reset_sums(
        self,
        messages: Sequence[tuple[Moving, Message]],
        registers: Sequence[Register],
        kept: Set[Register],
    ) -> list[Op]:
        """Zeroes the sums that were sent; those in `kept` only on the ranks that sent them."""
        ops = list[Op]()
        for register in registers:
            zero = self._zero(register)
            if register not in kept:
                ops.append(zero)
                continue
            senders = [m for _, m in messages if m.source == Slice(register)]
            if any(m.of_receiver for m in senders):
                raise PlanError("some ranks keep sums that others send to selected receivers")
            ops += [Choose(((m.on, zero),)) if m.on else zero for m in senders]
        return ops

    def _clear_pieces(
        self, messages: Sequence[tuple[Moving, Message]], added: Sequence[Register], steps: range
    ) -> list[Op]:
        """Zeroes the pieces of sums that were sent, if other pieces stay."""
        parts = [m for s, m in messages if s.sums and not _is_whole(m.source)]
        if any(m.source.register in added or m.of_receiver for m in parts):
            raise PlanError("some pieces of sums are sent in a step that adds to others")
        if parts and len(steps) > 1:
            raise PlanError("some pieces of sums are sent in a loop")
        clears = [(m.on, Clear(m.source)) for m in parts]
        return [Choose(((on, op),)) if on else op for on, op in clears]


def _is_whole(part: Slice) -> bool:
    return part.pieces is None and part.heads is None
