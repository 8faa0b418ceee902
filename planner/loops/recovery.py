"""Recover the loops of a plan: plan -> Loops, or PlanError with the reason."""

from planner.errors import PlanError
from planner.ir import Plan
from planner.loops import form
from planner.loops import port
from planner.loops.check import check

MOST = 40  # statements of a regular plan


def recover(plan: Plan) -> form.Loops:
    """The loop form of a plan, checked against its rows.

    Raises PlanError with the reason if the plan is irregular: not recovered, more than 40
    statements, or a list of ranks per step.
    """
    if plan.start:
        raise PlanError("irregular: copies held from the start are not recovered yet")
    rows = port.rows_of(plan)
    program = port.recover(plan, rows)
    loops = form.Loops(program.mesh, program.steps, tuple(map(statement, program.stmts)))
    if len(loops.statements) > MOST:
        raise PlanError(f"irregular: needs {len(loops.statements)} statements, at most {MOST}")
    if any(s.when.guard.ranks and len(s.when.guard.ranks) > 1 for s in loops.statements):
        raise PlanError("irregular: needs a list of ranks per step")
    check(loops, plan)
    return loops


def expr(e):
    return form.Expr(e.c, e.t, e.x, e.mod, e.table, e.period, e.phase)


def ends(pair):
    return None if pair is None else tuple(map(expr, pair))


def part(p):
    return form.Part(p.value, expr(p.lag), ends(p.pieces), ends(p.heads))


def statement(s):
    bounds = tuple((a, lo and expr(lo), hi and expr(hi)) for a, lo, hi in s.guard.ends)
    guard = form.Guard(bounds, s.guard.spans, s.guard.ranks, s.guard.since, s.guard.receiver)
    when = form.When(s.first, s.last, s.every, s.width, guard)
    parts = tuple(map(part, s.parts))
    match s.op:
        case "let":
            return form.Start(when, s.name, s.tensors, parts[0])
        case "send":
            hop = form.Table(s.table) if s.table else form.Shift(tuple(map(expr, s.shift)))
            return form.Send(when, s.name, s.tensors, parts, hop)
        case "gather":
            return form.Gather(when, s.name, s.tensors, parts[0], s.axis)
        case "deal":
            return form.AllToAll(when, s.name, s.tensors, parts[0], s.axis, parts[1])
        case "back":
            return form.Return(when, s.tensors, parts[0].value, s.axis)
        case _:
            kind = "any" if s.kind == "mask" else s.kind
            return form.Attend(when, parts, tuple(map(part, s.keys)), kind)
