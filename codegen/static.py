"""fix_slices(program)   a slice that depends on the rank  -->  a case for each value of the slice.

For targets that trace a program once for all ranks, so that arrays have the same shape on all.
"""

from dataclasses import replace

import numpy as np

from ringloom.codegen.conditions import RANK, Bound, Condition, Flags, Listed
from ringloom.codegen.ir import Attend, Choose, Op, Program, Slice, inner, slices, with_body
from ringloom.codegen.passes import coordinates_of
from ringloom.planner.errors import PlanError
from ringloom.planner.loops.form import Expr, Ints

MAX_SLICES = 4  # different slices of an attend


def fix_slices(program: Program) -> Program:
    """Splits attends into cases that take the same slices on all ranks that run them."""
    return replace(program, ops=tuple(_fix(op, program) for op in program.ops))


def _fix(op: Op, program: Program) -> Op:
    if not isinstance(op, Attend):
        return with_body(op, [_fix(x, program) for x in inner(op)])
    ends = [e for part in slices(op) for e in part.pieces or ()]
    if not any(any(e.axes) or e.table for e in ends):
        return op
    if any(e.step for e in ends):
        raise PlanError("the tokens that ranks attend to depend on both the rank and the step")
    coordinates = coordinates_of(program)
    values = np.array([e.at(0, coordinates) for e in ends]).T
    distinct = np.unique(values, axis=0)
    if len(distinct) > MAX_SLICES:
        raise PlanError(
            f"ranks attend to {len(distinct)} different slices in a step, at most {MAX_SLICES} can"
            " be printed"
        )
    cases = list[tuple[Condition, Op]]()
    for row in distinct:
        on = (values == row).all(axis=1)
        q, kv, *sums = (_evaluate(x, on, coordinates, program) for x in (op.q, op.kv, *op.sums))
        cases.append(((_test_for(on, coordinates),), replace(op, q=q, kv=kv, sums=tuple(sums))))
    return Choose((*cases[:-1], ((), cases[-1][1])))


def _evaluate(part: Slice, on: Flags, coordinates: Ints, program: Program) -> Slice:
    """Returns a slice with the numbers that it has on the marked ranks."""
    if part.pieces is None:
        return part
    low, high = (int(e.at(0, coordinates)[on][0]) for e in part.pieces)
    whole = (low, high) == (0, program.pieces_of(part.register) - 1)
    return replace(part, pieces=None if whole else (Expr(low), Expr(high)))


def _test_for(on: Flags, coordinates: Ints) -> Bound | Listed:
    """Returns a test that holds on the marked ranks: a range of a coordinate, or a list."""
    for axis in (*range(coordinates.shape[1] - 1), RANK):
        x = coordinates[:, axis]
        low, high, last = int(x[on].min()), int(x[on].max()), int(x.max())
        if np.array_equal((low <= x) & (x <= high), on):
            first, end = Expr(low) if low else None, Expr(high) if high < last else None
            return Bound(axis, first, end)
    return Listed(tuple(np.flatnonzero(on).tolist()))
