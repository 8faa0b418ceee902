"""accumulate(rows)   where attends keep partial sums, and which messages of sums carry any.

The sums of one tensor for the blocks of one value have a register of their own. Those for blocks
that a rank owns stay with it, unless all ranks send theirs in the next step: so what a rank
computes for itself travels only where it would travel with other sums anyway.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby

import numpy as np

from ringloom.codegen.conditions import Flags
from ringloom.codegen.ir import Register, Slice
from ringloom.codegen.lowering.order import swapped
from ringloom.planner.errors import PlanError
from ringloom.planner.ir import ACCUMULATORS, TENSORS
from ringloom.planner.loops.expand import Expansion, pairs
from ringloom.planner.loops.form import OWN, Attend, Expr, Ints, Part, Return, Root, Send, When
from ringloom.planner.loops.values import same

Delivery = Send | Return  # a message of sums


@dataclass(frozen=True, slots=True)
class Call:
    """An attend in steps in which it adds to the same sums; `q` and `kv` are what it reads.

    `gaps`: it reads several slices of these, not only one.
    """

    attend: Attend
    when: When
    sums: tuple[Register, ...]
    q: Part
    kv: Part
    gaps: bool


@dataclass(frozen=True)
class Accumulation:
    """The attends of a pass with what they add to, and the messages of sums that carry any.

    `deliveries` are these with the steps in which they carry sums, `kept` sums that some ranks
    keep where others send theirs; `idle` are the steps in which sums that are there do not leave.
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
        """True if the sums that arrive are all there ever are, so nothing has to be added up."""
        into, when = destination(self.rows, s), self.deliveries[s]
        others = [destination(self.rows, d) for d in self.deliveries if d != s]
        met = any(part.register == into.register and not _apart(part, into) for part in others)
        once = when.first == when.last and when.guard == When(0, 0).guard
        return once and not met and into.register not in self.added

    def replaces(self, s: Delivery) -> bool:
        """True if, besides, they are all that there is of a register."""
        into = destination(self.rows, s)
        return self.completes(s) and into == Slice(into.register)


def _apart(one: Slice, other: Slice) -> bool:
    """True if two slices have no heads in common."""
    if one.by != other.by or not one.heads or not other.heads:
        return False
    low, start = one.heads[0], other.heads[0]
    return one.by > 1 and low != start and (low.constant - start.constant) % one.by != 0


def accumulate(rows: Expansion) -> Accumulation:
    """Places the sums of a pass.

    Raises PlanError for what a program cannot do: sums of several values in one message or call,
    sums that stay where nobody fetches them, and sums of two arrivals that meet in one register.
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
    whens = {s: _narrowed(s.when, steps) for s, steps in presence.carrying.items()}
    return Accumulation(rows, tuple(calls), whens, frozenset(presence.kept), presence.idle)


def _narrowed(when: When, steps: Sequence[int]) -> When:
    """The steps from the first to the last of some; all that there are if its pauses move else."""
    made = replace(when, first=steps[0], last=steps[-1])
    return made if {*steps} <= {*made.steps} <= {*when.steps} else when


def _refuse_several(s: Delivery) -> None:
    if isinstance(s, Send) and len(s.parts) > 1:
        raise PlanError("a message carries partial sums for several values")
    if isinstance(s, Send) and s.into is None:
        raise PlanError("the partial sums of one message belong to parts of several values")


def source(s: Delivery) -> Slice:
    """The sums that a message takes."""
    if isinstance(s, Return):
        return Slice(Register(s.tensors[0], s.name))
    part = s.parts[0]
    return Slice(Register(s.tensors[0], part.value), part.pieces, part.heads)


def destination(rows: Expansion, s: Delivery) -> Slice:
    """The sums that a message is added to."""
    if isinstance(s, Send):
        assert s.into
        return Slice(Register(s.tensors[0], s.into.value), s.into.pieces, s.into.heads)
    exchange, heads, by = rows.loops.exchanges.get(s.name), None, 1
    if exchange and exchange.heads:
        heads, by = (exchange.heads, 1) if exchange.gathers else swapped(rows, exchange)
    if heads:
        low, high = (_before(e, 1 + s.lag) for e in heads)
        heads = low, high
    return Slice(Register(s.tensors[0], rows.loops.source(s)), None, heads, by)


def _before(e: Expr, steps: int) -> Expr:
    """Returns the value of a number this many steps earlier."""
    if e.period == 1:
        return replace(e, constant=e.constant - e.step * steps)
    return replace(e, phase=e.phase + steps)


def _calls(rows: Expansion, s: Attend, deliveries: Sequence[Delivery]) -> Iterator[Call]:
    """An attend, once for each run of steps in which it adds to the same sums."""
    q, kv, gaps = _value(s.q), _value(s.kv), len(s.q) > 1 or len(s.kv) > 1
    tensors = ACCUMULATORS[rows.plan.pass_]
    runs = groupby(s.when.steps, lambda t: tuple(_sums(rows, s, x, t, deliveries) for x in tensors))
    made = [(sums, [*steps]) for sums, steps in runs]
    for sums, steps in made:
        when = replace(s.when, first=steps[0], last=steps[-1]) if len(made) > 1 else s.when
        if when.steps != steps:
            raise PlanError("an attend that pauses adds to different sums in turn")
        yield Call(s, when, sums, q, kv, gaps)


def _value(parts: Sequence[Part]) -> Part:
    """The part, or the value of which there are several."""
    values = {(part.value, part.lag, part.heads) for part in parts}
    if len(values) > 1:
        raise PlanError("one attend reads blocks of several messages, which loops cannot express")
    value, lag, heads = values.pop()
    return parts[0] if len(parts) == 1 else Part(value, lag, None, heads)


def _sums(
    rows: Expansion, s: Attend, tensor: str, t: int, deliveries: Sequence[Delivery]
) -> Register:
    """The register that an attend adds to in a step."""
    side = TENSORS[tensor].side
    part = (s.q if side == "q" else s.kv)[0]
    travelling = Register(tensor, part.value)
    ranks = rows.rectangles[s][t].rank
    own = part.value == OWN or _owned(rows, part, side, t, ranks)
    return (
        Register(tensor, OWN)
        if own and not _leaves(rows, travelling, t, deliveries)
        else travelling
    )


def _owned(rows: Expansion, part: Part, side: str, t: int, ranks: np.ndarray) -> bool:
    """True if ranks own all of what a value is to them."""
    own, value = rows.values[side].named[OWN, None].table, rows.value(part, side, t).table
    return same(*(table.reshape(len(table), -1)[ranks] for table in (own, value)))


def _leaves(rows: Expansion, sums: Register, t: int, deliveries: Sequence[Delivery]) -> bool:
    """True if all ranks send these sums in the next step, or an exchange takes them back."""
    takers = [s for s in deliveries if source(s).register == sums]
    if any(isinstance(s, Return) for s in takers):
        return True
    senders = [
        pairs(rows.loops, s, t + 1)[0]
        for s in takers
        if isinstance(s, Send) and s.when.on(t + 1) and s.parts[0].pieces is None
    ]
    return bool(senders) and len(np.unique(np.concatenate(senders))) == rows.plan.ranks


class _Presence:
    """Which ranks have sums of which arrival, as the steps go by."""

    def __init__(
        self, rows: Expansion, calls: Sequence[Call], deliveries: Sequence[Delivery]
    ) -> None:
        self.rows, self.calls, self.deliveries = rows, calls, deliveries
        self.ranks, self.born = dict[Register, Flags](), dict[Register, int | None]()
        self.carrying = dict[Delivery, list[int]]()
        self.kept = set[Register]()  # some ranks send these, others keep theirs
        self.idle = defaultdict[Register, list[int]](list)
        for t in range(rows.loops.steps):
            self._step(t)
        if left := [r for r, on in self.ranks.items() if r.value != OWN and on.any()]:
            raise PlanError(f"partial {left[0].of} is left on ranks that do not own it")

    def _step(self, t: int) -> None:
        """Messages leave, attends add, then messages arrive."""
        running = [s for s in self.deliveries if s.when.on(t)]
        leaving = [s for s in running if self._has(source(s).register)]
        taken = {source(s).register for s in leaving}
        for register in self.ranks:
            if self._has(register) and register not in taken:
                self.idle[register].append(t)
        for s in leaving:
            self.carrying.setdefault(s, []).append(t)
        for s in leaving:
            if source(s).pieces is source(s).heads is None:
                self.ranks[source(s).register][self._senders(s, t)] = False
        self.kept |= {r for s in leaving if self._has(r := source(s).register)}
        for call in (call for call in self.calls if call.when.on(t)):
            for register in call.sums:
                part = call.q if register.side == "q" else call.kv
                self._add(register, part, t, self.rows.rectangles[call.attend][t].rank)
        for s in leaving:
            into = s.into if isinstance(s, Send) else None
            ranks = pairs(self.rows.loops, s, t)[1] if isinstance(s, Send) else slice(None)
            self._add(destination(self.rows, s).register, into, t, ranks)

    def _has(self, register: Register) -> bool:
        return register in self.ranks and bool(self.ranks[register].any())

    def _senders(self, s: Delivery, t: int) -> Ints | slice:
        """The ranks whose sums leave: for a root, all along the axis."""
        if isinstance(s, Return) or isinstance(s.hop, Root):
            return slice(None)
        return pairs(self.rows.loops, s, t)[0]

    def _add(self, register: Register, part: Part | None, t: int, ranks: Ints | slice) -> None:
        """Notes that ranks have sums for a value."""
        born = None
        if part and register.value != OWN:
            born = self.rows.value(part, register.side, t).born
        if self._has(register) and self.born[register] != born:
            raise PlanError(f"partial {register.of} of two arrivals of {register.value} meet")
        self.born[register] = born
        none = np.zeros(self.rows.plan.ranks, np.bool_)
        self.ranks.setdefault(register, none)[ranks] = True
