"""accumulate(rows)   assigns partial sums to registers, and finds the messages that carry sums.

Each register holds the sums of one tensor for the blocks of one value. Sums for blocks that a rank
owns stay on the rank, unless all ranks send that register in the next step: the results that a rank
computes for itself travel only with other sums.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby

import numpy as np

from ringloom.codegen.conditions import Flags
from ringloom.codegen.ir import Register, Slice
from ringloom.codegen.lowering.order import swapped_heads
from ringloom.planner.errors import PlanError
from ringloom.planner.ir import ACCUMULATORS, TENSORS
from ringloom.planner.loops.expand import Expansion, find_pairs
from ringloom.planner.loops.form import OWN, Attend, Expr, Ints, Part, Return, Root, Send, When
from ringloom.planner.loops.values import have_same_blocks

Delivery = Send | Return  # a message of sums


@dataclass(frozen=True, slots=True)
class Call:
    """An attend in the steps in which it adds to the same sums; it reads `q` and `kv`.

    `gaps`: the attend reads several slices of these parts.
    """

    attend: Attend
    when: When
    sums: tuple[Register, ...]
    q: Part
    kv: Part
    gaps: bool


@dataclass(frozen=True)
class Accumulation:
    """The attends of a pass with the sums that they add to, and the messages that carry sums.

    `deliveries`: these messages, with the steps in which they carry sums. `kept`: sums that some
    ranks keep while others send theirs. `idle`: the steps in which sums exist but are not sent.
    """

    rows: Expansion
    calls: tuple[Call, ...]
    deliveries: dict[Delivery, When]
    kept: frozenset[Register]
    idle: dict[Register, list[int]]

    @cached_property
    def added(self) -> frozenset[Register]:
        """The sums that attends add to."""
        return frozenset(r for call in self.calls for r in call.sums)

    def completes(self, s: Delivery) -> bool:
        """Returns True if the sums that arrive are complete, so that nothing is added to them."""
        into, when = destination(self.rows, s), self.deliveries[s]
        others = [destination(self.rows, d) for d in self.deliveries if d != s]
        shared = any(p.register == into.register and not _is_disjoint(p, into) for p in others)
        once = when.first == when.last and when.guard == When(0, 0).guard
        return once and not shared and into.register not in self.added

    def replaces(self, s: Delivery) -> bool:
        """Returns True if the sums that arrive are complete and fill their register."""
        into = destination(self.rows, s)
        return self.completes(s) and into == Slice(into.register)


def _is_disjoint(a: Slice, b: Slice) -> bool:
    """Returns True if two slices have no heads in common."""
    if a.by != b.by or not a.heads or not b.heads:
        return False
    low, start = a.heads[0], b.heads[0]
    return a.by > 1 and low != start and (low.constant - start.constant) % a.by != 0


def accumulate(rows: Expansion) -> Accumulation:
    """Assigns the sums of a pass to registers.

    Raises PlanError for loops that a program cannot express: sums of several values in one message
    or call, sums that stay on ranks that do not own them, and sums of two arrivals in one register.
    """
    deliveries = [s for s in rows.loops.statements if isinstance(s, Delivery) and s.sums]
    for s in deliveries:
        _refuse_several(s)
    calls = [
        call
        for s in rows.loops.statements
        if isinstance(s, Attend)
        for call in _calls(rows, s, deliveries)
    ]
    presence = _Presence(rows, calls, deliveries)
    whens = {s: _narrow(s.when, steps) for s, steps in presence.carrying.items()}
    return Accumulation(rows, tuple(calls), whens, frozenset(presence.kept), presence.idle)


def _narrow(when: When, steps: Sequence[int]) -> When:
    """Narrows a range to the first and last of some steps, unless that would shift its pauses."""
    narrowed = replace(when, first=steps[0], last=steps[-1])
    return narrowed if {*steps} <= {*narrowed.steps} <= {*when.steps} else when


def _refuse_several(s: Delivery) -> None:
    if isinstance(s, Send) and len(s.parts) > 1:
        raise PlanError("a message carries partial sums for several values")
    if isinstance(s, Send) and s.into is None:
        raise PlanError("the partial sums of one message belong to parts of several values")


def source(s: Delivery) -> Slice:
    """Returns the sums that a message sends."""
    if isinstance(s, Return):
        return Slice(Register(s.tensors[0], s.name))
    part = s.parts[0]
    return Slice(Register(s.tensors[0], part.value), part.pieces, part.heads)


def destination(rows: Expansion, s: Delivery) -> Slice:
    """Returns the sums that a message is added to."""
    if isinstance(s, Send):
        assert s.into
        return Slice(Register(s.tensors[0], s.into.value), s.into.pieces, s.into.heads)
    exchange, heads, by = rows.loops.exchanges.get(s.name), None, 1
    if exchange and exchange.heads:
        heads, by = (exchange.heads, 1) if exchange.gathers else swapped_heads(rows, exchange)
    if heads:
        low, high = (_shift_back(e, 1 + s.lag) for e in heads)
        heads = low, high
    return Slice(Register(s.tensors[0], rows.loops.source(s)), None, heads, by)


def _shift_back(e: Expr, steps: int) -> Expr:
    """Returns an expression for the value a number of steps earlier."""
    if e.period == 1:
        return replace(e, constant=e.constant - e.step * steps)
    return replace(e, phase=e.phase + steps)


def _calls(rows: Expansion, s: Attend, deliveries: Sequence[Delivery]) -> Iterator[Call]:
    """Yields an attend once for each run of steps in which it adds to the same sums."""
    q, kv, gaps = _join(s.q), _join(s.kv), len(s.q) > 1 or len(s.kv) > 1
    tensors = ACCUMULATORS[rows.plan.pass_]
    runs = groupby(s.when.steps, lambda t: tuple(_sums(rows, s, x, t, deliveries) for x in tensors))
    targets = [(sums, [*steps]) for sums, steps in runs]
    for sums, steps in targets:
        when = replace(s.when, first=steps[0], last=steps[-1]) if len(targets) > 1 else s.when
        if when.steps != steps:
            raise PlanError("an attend that skips steps adds to different sums")
        yield Call(s, when, sums, q, kv, gaps)


def _join(parts: Sequence[Part]) -> Part:
    """Returns the only part, or the whole value that several parts are taken from."""
    values = {(part.value, part.lag, part.heads) for part in parts}
    if len(values) > 1:
        raise PlanError("one attend reads blocks of several messages, which loops cannot express")
    value, lag, heads = values.pop()
    return parts[0] if len(parts) == 1 else Part(value, lag, None, heads)


def _sums(
    rows: Expansion, s: Attend, tensor: str, t: int, deliveries: Sequence[Delivery]
) -> Register:
    """Returns the register that an attend adds to in a step."""
    side = TENSORS[tensor].side
    part = (s.q if side == "q" else s.kv)[0]
    travelling = Register(tensor, part.value)
    ranks = rows.rectangles[s][t].rank
    own = part.value == OWN or _is_owned(rows, part, side, t, ranks)
    return (
        Register(tensor, OWN)
        if own and not _is_sent_next(rows, travelling, t, deliveries)
        else travelling
    )


def _is_owned(rows: Expansion, part: Part, side: str, t: int, ranks: np.ndarray) -> bool:
    """Returns True if ranks own all blocks of their value."""
    own, value = rows.values[side].named[OWN, None].table, rows.value(part, side, t).table
    return have_same_blocks(*(table.reshape(len(table), -1)[ranks] for table in (own, value)))


def _is_sent_next(rows: Expansion, sums: Register, t: int, deliveries: Sequence[Delivery]) -> bool:
    """Returns True if all ranks send these sums in the next step, or an exchange returns them."""
    outgoing = [s for s in deliveries if source(s).register == sums]
    if any(isinstance(s, Return) for s in outgoing):
        return True
    senders = [
        find_pairs(rows.loops, s, t + 1)[0]
        for s in outgoing
        if isinstance(s, Send) and s.when.on(t + 1) and s.parts[0].pieces is None
    ]
    return bool(senders) and len(np.unique(np.concatenate(senders))) == rows.plan.ranks


class _Presence:
    """The ranks that have sums, and the arrivals that these belong to, from step to step."""

    def __init__(
        self, rows: Expansion, calls: Sequence[Call], deliveries: Sequence[Delivery]
    ) -> None:
        self.rows, self.calls, self.deliveries = rows, calls, deliveries
        self.ranks, self.born = dict[Register, Flags](), dict[Register, int | None]()
        self.carrying = dict[Delivery, list[int]]()
        self.kept = set[Register]()  # sums that some ranks send and others keep
        self.idle = defaultdict[Register, list[int]](list)
        for t in range(rows.loops.steps):
            self._step(t)
        if leftover := [r for r, on in self.ranks.items() if r.value != OWN and on.any()]:
            raise PlanError(f"partial {leftover[0].of} is left on ranks that do not own it")

    def _step(self, t: int) -> None:
        """Sends messages, adds the results of attends, then receives messages."""
        active = [s for s in self.deliveries if s.when.on(t)]
        messages = [s for s in active if self._has(source(s).register)]
        sent = {source(s).register for s in messages}
        for register in self.ranks:
            if self._has(register) and register not in sent:
                self.idle[register].append(t)
        for s in messages:
            self.carrying.setdefault(s, []).append(t)
        for s in messages:
            if source(s).pieces is source(s).heads is None:
                self.ranks[source(s).register][self._senders(s, t)] = False
        self.kept |= {r for s in messages if self._has(r := source(s).register)}
        for call in (call for call in self.calls if call.when.on(t)):
            for register in call.sums:
                part = call.q if register.side == "q" else call.kv
                self._add(register, part, t, self.rows.rectangles[call.attend][t].rank)
        for s in messages:
            into = s.into if isinstance(s, Send) else None
            ranks = find_pairs(self.rows.loops, s, t)[1] if isinstance(s, Send) else slice(None)
            self._add(destination(self.rows, s).register, into, t, ranks)

    def _has(self, register: Register) -> bool:
        return register in self.ranks and bool(self.ranks[register].any())

    def _senders(self, s: Delivery, t: int) -> Ints | slice:
        """Returns the ranks that send sums: all ranks, unless the message is a hop."""
        if isinstance(s, Return) or isinstance(s.hop, Root):
            return slice(None)
        return find_pairs(self.rows.loops, s, t)[0]

    def _add(self, register: Register, part: Part | None, t: int, ranks: Ints | slice) -> None:
        """Records that ranks have sums for a value."""
        born = None
        if part and register.value != OWN:
            born = self.rows.value(part, register.side, t).born
        if self._has(register) and self.born[register] != born:
            raise PlanError(
                f"partial {register.of} of two arrivals of {register.value} share a register"
            )
        self.born[register] = born
        no_rank = np.zeros(self.rows.plan.ranks, np.bool_)
        self.ranks.setdefault(register, no_rank)[ranks] = True
