"""Which values are read after an op: what loops carry, and what may be left out.

unread   a value that nobody reads   -->  nothing
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from ringloom.codegen.ir import At, Choose, For, Let, Op, Program, Register, Zero, reads, writes
from ringloom.planner.loops.form import OWN


def results(program: Program) -> frozenset[Register]:
    """The registers that are read after a program."""
    own = {Register(of, OWN) for of in (("OUT",) if program.pass_ == "forward" else ("DQ", "DKV"))}
    kept = {*program.kept} if program.pass_ == "forward" else set[Register]()
    return frozenset(own | kept | {Register("OUT", r.value) for r in kept if r.of == "q"})


def needs(op: Op) -> frozenset[Register]:
    """The registers whose values an op needs; where no case may hold, what it would change."""
    left = writes(op) if isinstance(op, Choose) and op.cases[-1][0] else ()
    return frozenset((*reads(op), *left))


def first_read(ops: Iterable[Op]) -> frozenset[Register]:
    """The registers that ops read as they were before."""
    read, written = set[Register](), set[Register]()
    for op in ops:
        inside = first_read(op.body) if isinstance(op, For | At) else needs(op)
        read |= inside - written
        written |= {*writes(op)}
    return frozenset(read)


def carried(loop: For, after: frozenset[Register]) -> tuple[Register, ...]:
    """The registers that a loop has from step to step; `after` are those read after it."""
    kept = first_read(loop.body) | after
    return tuple(register for register in writes(loop) if register in kept)


def unread(program: Program) -> Program:
    """Leave out names and zeros that are replaced before anybody reads them."""
    made, after = list[Op](), results(program)
    for op in reversed(program.ops):
        ops = _unread(op.body if isinstance(op, At) else [op], after)
        after = _before(op, after)
        made[:0] = ops if not isinstance(op, At) else [replace(op, body=tuple(ops))] * bool(ops)
    return replace(program, ops=tuple(made))


def _unread(ops: Sequence[Op], after: frozenset[Register]) -> list[Op]:
    made = list[Op]()
    for op in reversed(ops):
        if not isinstance(op, Let | Zero) or {*writes(op)} & after:
            made.insert(0, op)
            after = _before(op, after)
    return made


def _before(op: Op, after: frozenset[Register]) -> frozenset[Register]:
    """The registers that are read from an op on, if these are after it."""
    match op:
        case For():
            return after | first_read(op.body) | {*carried(op, after)}
        case At():
            for x in reversed(op.body):
                after = _before(x, after)
            return after
        case _:
            gone = frozenset[Register]() if isinstance(op, Choose) else frozenset(writes(op))
            return (after - gone) | needs(op)
