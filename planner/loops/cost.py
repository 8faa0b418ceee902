"""The cost of statements: what a reader has to read, counted in statements."""

from collections.abc import Iterable, Iterator

from planner.ir import TENSORS
from planner.loops.form import (
    AllToAll,
    Attend,
    Expr,
    Gather,
    Loops,
    Part,
    Return,
    Scatter,
    Send,
    Shift,
    Start,
    Statement,
    Table,
)


def cost(statements: Iterable[Statement]) -> float:
    """Statements, and the tables, bounds, moving slices and vague kinds in them."""
    return sum(map(_one, statements))


def cost_of(loops: Loops) -> float:
    """The same for all statements of a plan, and half a statement per section."""
    return cost(loops.statements) + 0.5 * len(loops.sections())


def _one(s: Statement) -> float:
    guard = s.when.guard
    total = 0.5 if isinstance(s, Start) else 1.0
    ends = [e for p in parts_of(s) for pair in (p.pieces, p.heads) for e in pair or ()]
    total += sum(0.7 if e.table else 0.3 for e in ends if e.step or any(e.axes))
    total += 2 * guard.tabled + 0.1 * len(guard.bounds)
    total += 0.05 * sum(e is not None for b in guard.bounds for e in b[1:])
    if isinstance(s, Attend):
        total += {"any": 2.0}.get(s.kind, 0.0)
    if isinstance(s, Send):
        sums = TENSORS[s.tensors[0]].accumulates
        total += 2 * isinstance(s.hop, Table) + 1.5 * (sums and s.into is None)
        total += 0.01 * (guard.receiver == sums)  # rather said where it is attended
    return total


def parts_of(s: Statement) -> Iterator[Part]:
    """All parts that a statement names."""
    match s:
        case Start() | Gather() | Scatter():
            yield s.part
        case AllToAll():
            yield from (s.part, s.share)
        case Send():
            yield from s.parts
            if s.into:
                yield s.into
        case Attend():
            yield from (*s.q, *s.kv)
        case Return():
            return


def expressions(s: Statement) -> Iterator[Expr]:
    """All expressions of a statement that are not of its guard's tables."""
    for p in parts_of(s):
        yield p.lag
        for pair in (p.pieces, p.heads):
            yield from pair or ()
    for _, low, high in s.when.guard.bounds:
        yield from (e for e in (low, high) if e)
    if isinstance(s, Send) and not isinstance(s.hop, Table):
        yield from s.hop.by if isinstance(s.hop, Shift) else (s.hop.root,)
