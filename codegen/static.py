"""static(program)   a slice whose length depends on the rank  -->  a case for each length.

For targets that trace a program once for all ranks, whose arrays have one shape.
"""

from dataclasses import replace

import numpy as np

from ringloom.codegen.conditions import RANK, Bound, Condition, Flags, Listed
from ringloom.codegen.ir import Attend, Choose, Op, Program, Slice, inner, slices, with_body
from ringloom.codegen.passes import coordinates_of
from ringloom.planner.errors import PlanError
from ringloom.planner.loops.form import Expr, Ints

MOST = 4  # different slices


def static(program: Program) -> Program:
    """A program whose attends take the same slices on all ranks that run them."""
    return replace(program, ops=tuple(_static(op, program) for op in program.ops))


def _static(op: Op, program: Program) -> Op:
    if not isinstance(op, Attend):
        return with_body(op, [_static(x, program) for x in inner(op)])
    ends = [e for part in slices(op) for e in part.pieces or ()]
    if not any(any(e.axes) or e.table for e in ends):
        return op
    if any(e.step for e in ends):
        raise PlanError("the tokens that ranks attend to change with the step, too")
    where = coordinates_of(program)
    each = np.array([e.at(0, where) for e in ends]).T
    every = np.unique(each, axis=0)
    if len(every) > MOST:
        raise PlanError(f"ranks attend to {len(every)} different slices at once")
    cases = list[tuple[Condition, Op]]()
    for row in every:
        on = (each == row).all(axis=1)
        q, kv, *sums = (_fixed(part, on, where, program) for part in (op.q, op.kv, *op.sums))
        cases.append(((_ranks(on, where),), replace(op, q=q, kv=kv, sums=tuple(sums))))
    return Choose((*cases[:-1], ((), cases[-1][1])))


def _fixed(part: Slice, on: Flags, where: Ints, program: Program) -> Slice:
    """Returns a slice with its values on some ranks."""
    if part.pieces is None:
        return part
    low, high = (int(e.at(0, where)[on][0]) for e in part.pieces)
    every = (low, high) == (0, program.pieces_of(part.register) - 1)
    return replace(part, pieces=None if every else (Expr(low), Expr(high)))


def _ranks(on: Flags, where: Ints) -> Bound | Listed:
    """Some ranks, by one of their coordinates if that tells them."""
    for axis in (*range(where.shape[1] - 1), RANK):
        x = where[:, axis]
        low, high, last = int(x[on].min()), int(x[on].max()), int(x.max())
        if np.array_equal((low <= x) & (x <= high), on):
            first, end = Expr(low) if low else None, Expr(high) if high < last else None
            return Bound(axis, first, end)
    return Listed(tuple(np.flatnonzero(on).tolist()))
