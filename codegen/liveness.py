"""Finds the values that are read after an op: loops carry these, and others may be left out.

drop_unread   a value that no op reads   -->  nothing
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from ringloom.codegen.ir import At, Choose, For, Let, Op, Program, Register, Zero, reads, writes
from ringloom.planner.loops.form import OWN


def results(program: Program) -> frozenset[Register]:
    """Returns the registers that are read after a program."""
    own = {Register(of, OWN) for of in (("OUT",) if program.pass_ == "forward" else ("DQ", "DKV"))}
    kept = {*program.kept} if program.pass_ == "forward" else set[Register]()
    return frozenset(own | kept | {Register("OUT", r.value) for r in kept if r.of == "q"})


def required_registers(op: Op) -> frozenset[Register]:
    """Returns the registers that an op reads, or leaves unchanged if no case of a choice holds."""
    unchanged = writes(op) if isinstance(op, Choose) and op.cases[-1][0] else ()
    return frozenset((*reads(op), *unchanged))


def required_before(ops: Iterable[Op]) -> frozenset[Register]:
    """Returns the registers that ops read before they write them."""
    required, written = set[Register](), set[Register]()
    for op in ops:
        inside = required_before(op.body) if isinstance(op, For | At) else required_registers(op)
        required |= inside - written
        written |= {*writes(op)}
    return frozenset(required)


def carried_registers(loop: For, after: frozenset[Register]) -> tuple[Register, ...]:
    """Returns the registers that a loop carries from step to step; `after`: those read later."""
    live = required_before(loop.body) | after
    return tuple(register for register in writes(loop) if register in live)


def drop_unread(program: Program) -> Program:
    """Removes names and zeros that are replaced before they are read."""
    kept_ops, after = list[Op](), results(program)
    for op in reversed(program.ops):
        ops = _drop_unread(op.body if isinstance(op, At) else [op], after)
        after = _read_from(op, after)
        kept_ops[:0] = ops if not isinstance(op, At) else [replace(op, body=tuple(ops))] * bool(ops)
    return replace(program, ops=tuple(kept_ops))


def _drop_unread(ops: Sequence[Op], after: frozenset[Register]) -> list[Op]:
    kept = list[Op]()
    for op in reversed(ops):
        if not isinstance(op, Let | Zero) or {*writes(op)} & after:
            kept.insert(0, op)
            after = _read_from(op, after)
    return kept


def _read_from(op: Op, after: frozenset[Register]) -> frozenset[Register]:
    """Returns the registers that are read in an op or later, given those read after it."""
    match op:
        case For():
            return after | required_before(op.body) | {*carried_registers(op, after)}
        case At():
            for x in reversed(op.body):
                after = _read_from(x, after)
            return after
        case _:
            replaced = frozenset[Register]() if isinstance(op, Choose) else frozenset(writes(op))
            return (after - replaced) | required_registers(op)
