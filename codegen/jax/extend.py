"""Loops in which sums that stay on a rank are messages, too: from the rank to itself."""

from dataclasses import replace

from codegen.jax.hops import is_stepwise, sends_inputs
from codegen.jax.trace import HOME, trace
from planner.errors import PlanError
from planner.ir import ADDS, TENSORS, Plan
from planner.loops.form import (
    Attend,
    Expr,
    Guard,
    Loops,
    Part,
    Return,
    Scatter,
    Send,
    Shift,
    Statement,
    When,
)

STAY = "stay"  # the name of a message from ranks to themselves


def settled(loops: Loops, plan: Plan) -> Loops:
    """The loops, with messages to oneself where some sums stay and others of the kind go on.

    In a causal ring the sums of the last rank go home one step after the other, each one rank
    further; those for its own keys are at home already: that message begins a step earlier.
    """
    if not some_stay(loops, plan):
        return loops
    longer = replace(loops, statements=tuple(_earlier(s, loops) for s in loops.statements))
    if longer != loops and not some_stay(longer, plan):
        return longer
    more = replace(loops, statements=(*loops.statements, *_staying(loops, plan)))
    if some_stay(more, plan):
        raise PlanError("sums of which some stay on a rank where others go on")
    return more


def some_stay(loops: Loops, plan: Plan) -> bool:
    """True if what an attend or a message adds stays on some ranks and goes on from others."""
    returns = {n for n, s in enumerate(loops.statements) if isinstance(s, Return | Scatter)}
    sinks = trace(loops, plan).sinks.values()
    return any(HOME in ends and ends - returns - {HOME} for ends in sinks)


def stays(s: Statement) -> bool:
    """True for a message from ranks to themselves."""
    return isinstance(s, Send) and s.name == STAY


def _earlier(s: Statement, loops: Loops) -> Statement:
    """A message of sums that would not leave the rank in the step before its first one."""
    if not isinstance(s, Send) or sends_inputs(s) or not is_stepwise(s):
        return s
    assert isinstance(s.hop, Shift)
    t, at = s.when.first - 1, loops.coordinates()
    still = all((e.at(t, at) % n == 0).all() for e, n in zip(s.hop.by, loops.mesh, strict=True))
    return replace(s, when=replace(s.when, first=t)) if t >= 0 and still else s


def _staying(loops: Loops, plan: Plan) -> list[Send]:
    """Messages to oneself of the sums of attends, of an interval of ranks each."""
    rows, made = trace(loops, plan), list[Send]()
    for (n, side), ends in rows.sinks.items():
        s = loops.statements[n]
        if HOME not in ends or len(ends) == 1 or not isinstance(s, Attend):
            continue
        (part,) = s.q if side == "q" else s.kv
        (tensor,) = (name for name in ADDS[plan.pass_] if TENSORS[name].side == side)
        if tensor == "OUT" or part.lag != Expr() or len(loops.mesh) > 1:
            raise PlanError("outputs, or sums of some steps ago, that stay where others go on")
        for t, ranks in rows.home[n, side]:
            if not len(ranks):
                continue
            low, high = Expr(int(ranks[0])), Expr(int(ranks[-1]))
            if high.constant - low.constant + 1 != len(ranks):
                raise PlanError("sums that stay on ranks here and there")
            when = When(t + 1, t + 1, guard=Guard(((0, low, high),)))
            before = Part(part.value, Expr(1))
            made.append(Send(when, STAY, (tensor,), (before,), Shift((Expr(),)), Part("own")))
    return made
