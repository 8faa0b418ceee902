"""Loops in which sums that stay on a rank are sent from it to itself, as others are sent home."""

from dataclasses import replace

from codegen.jax.hops import is_stepwise
from codegen.jax.trace import HOME, trace
from planner.errors import PlanError
from planner.ir import TENSORS, Plan
from planner.loops.form import Loops, Return, Scatter, Send, Shift, Statement


def settled(loops: Loops, plan: Plan) -> Loops:
    """The loops, some of whose messages of sums begin a step earlier, at no distance.

    In a causal ring the sums of the last rank go home one step after the other, each one rank
    further; those for its own keys are at home already, no rank further.
    """
    if not some_stay(loops, plan):
        return loops
    longer = replace(loops, statements=tuple(_earlier(s, loops) for s in loops.statements))
    if longer == loops or some_stay(longer, plan):
        raise PlanError("sums of which some stay on a rank where others go on")
    return longer


def some_stay(loops: Loops, plan: Plan) -> bool:
    """True if what an attend or a message adds stays on some ranks and goes on from others."""
    returns = {n for n, s in enumerate(loops.statements) if isinstance(s, Return | Scatter)}
    sinks = trace(loops, plan).sinks.values()
    return any(HOME in ends and ends - returns - {HOME} for ends in sinks)


def _earlier(s: Statement, loops: Loops) -> Statement:
    """A message of sums that would not leave the rank in the step before its first one."""
    if not isinstance(s, Send) or not TENSORS[s.tensors[0]].accumulates or not is_stepwise(s):
        return s
    assert isinstance(s.hop, Shift)
    t, at = s.when.first - 1, loops.coordinates()
    still = all((e.at(t, at) % n == 0).all() for e, n in zip(s.hop.by, loops.mesh, strict=True))
    return replace(s, when=replace(s.when, first=t)) if t >= 0 and still else s
