"""rolled   For(steps, body)   -->  runs of steps in which the same happens

For targets that trace loops. A loop is rolled where whom its messages connect, and which tokens
its slices take, are the same in all of its steps, and its messages run in all of them. So a loop
is cut where other cases are taken, or, if these are many runs of steps, where other messages run.
Loops that are cut often are unrolled: there tests of the step stand around tests of the rank.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby, pairwise

import numpy as np

from ringloom.codegen.conditions import (
    Bound,
    Condition,
    Every,
    Flags,
    Span,
    Steps,
    Test,
    holds,
    steps_of,
)
from ringloom.codegen.ir import At, Choose, For, Hop, Message, Op, Post, Program, Wait, slices, walk
from ringloom.codegen.passes import asked_in, chosen, coordinates_of
from ringloom.planner.errors import PlanError
from ringloom.planner.loops.form import Ints

FEW = 3  # runs of a loop are written one after the other, two single steps not


def rolls(loop: For) -> bool:
    """True if the same happens in all steps but for numbers that may be traced."""
    ops = [*walk(loop.body)]
    messages = [op.message for op in ops if isinstance(op, Post | Wait)]
    return not any(map(_steps, messages)) and not any(map(_cut_by_step, ops))


def _steps(message: Message) -> bool:
    """True if a message runs in some steps, or connects other ranks in each."""
    by = message.route.by if isinstance(message.route, Hop) else ()
    return any(e.step for e in by) or any(map(_of_step, message.on))


def _of_step(test: Test) -> bool:
    """True for a test of the step."""
    if isinstance(test, Bound):
        return any(e is not None and e.step != 0 for e in (test.low, test.high))
    return isinstance(test, Steps | Every | Span)


def _cut_by_step(op: Op) -> bool:
    """True if an op takes other tokens, or other slices of heads than one, in each step."""
    ends = [e for part in slices(op) for e in part.pieces or ()]
    heads = [part.heads for part in slices(op) if part.heads and part.heads[0] != part.heads[1]]
    return any(e.step for e in (*ends, *(e for pair in heads for e in pair)))


# ---- runs of steps


def rolled(program: Program) -> Program:
    """Loops in runs of steps, each of which is rolled, unrolled, or one step."""
    made, where = list[Op](), coordinates_of(program)
    for op in program.ops:
        made += _runs(op, where) if isinstance(op, For) else [op]
    return replace(program, ops=tuple(made))


def _runs(loop: For, where: Ints) -> list[Op]:
    for alike in (_cases, _messages):
        signs = [tuple(alike(op, t, where) for op in loop.body) for t in loop.steps]
        pairs = zip(signs, loop.steps, strict=True)
        runs = [[t for _, t in group] for _, group in groupby(pairs, lambda pair: pair[0])]
        made = [_part(loop.body, range(run[0], run[-1] + 1), where) for run in runs]
        loops = [op for op in made if isinstance(op, For)]
        apart = any(isinstance(a, At) and isinstance(b, At) for a, b in pairwise(made))
        fits = len(made) <= FEW and not apart if loops else len(made) < FEW
        if fits and all(map(rolls, loops)):
            return [*made]
    body = (_by_step(_within(op, loop.steps, where), [*loop.steps], where) for op in loop.body)
    return [replace(loop, body=tuple(body))]


def _within(op: Op, steps: range, where: Ints) -> Op:
    """An op whose message says the steps in which some rank sends it, if that is not in all."""
    if not isinstance(op, Post | Wait):
        return op
    on = [t for t, row in zip(steps, _sent(op, steps, where), strict=True) if row.any()]
    if steps_of(op.message.on) or len(on) == len(steps) or on != [*range(on[0], on[-1] + 1)]:
        return op
    first = on[0] if on[0] > steps[0] else None
    last = on[-1] if on[-1] < steps[-1] else None
    message = replace(op.message, on=(Steps(first, last), *op.message.on))
    return replace(op, message=message)


def _part(body: Sequence[Op], steps: range, where: Ints) -> Op:
    """Some steps of a loop, without what does not happen in them."""
    left = [op for op in body if not isinstance(op, Post | Wait) or _sent(op, steps, where).any()]
    ops = tuple(map(_complete, asked_in(left, steps, where)))
    return For(steps, ops) if len(steps) > 1 else At(steps[0], ops)


def _complete(op: Op) -> Op:
    """A Wait is not partial where something comes to all ranks."""
    if isinstance(op, Wait) and isinstance(op.message.route, Hop) and not op.message.on:
        return replace(op, partial=False)
    return op


def _sent(op: Post | Wait, steps: Sequence[int], where: Ints) -> Flags:
    """Where the message of an op is sent: [steps, ranks]."""
    return holds(op.message.on, steps, where)


def _cases(op: Op, t: int, where: Ints) -> tuple[bool, ...]:
    """Which cases of an op some rank takes in a step, and if some rank takes none."""
    if not isinstance(op, Choose):
        return _messages(op, t, where)
    left, made = np.ones(len(where), np.bool_), list[bool]()
    for tests, _ in op.cases:
        on = holds(tests, [t], where)[0] & left
        made.append(bool(on.any()))
        left = left & ~on
    return tuple(made)


def _messages(op: Op, t: int, where: Ints) -> tuple[bool, ...]:
    """If an op sends a message in a step."""
    return (not isinstance(op, Post | Wait) or bool(_sent(op, [t], where).any()),)


def unrolled(program: Program) -> int:
    """The number of loops that are not rolled."""
    return sum(isinstance(op, For) and not rolls(op) for op in program.ops)


def everyone(program: Program, sums: bool) -> Program:
    """Loops whose messages of inputs, and if told so of sums, are sent by all ranks in each step.

    That is right where others send what nobody reads, or sums that are zero, as the check tells.
    """

    def spread(op: Op) -> Op:
        if not isinstance(op, Post | Wait) or not isinstance(op.message.route, Hop):
            return op
        if op.message.source.register.accumulates and not sums:
            return op
        return replace(op, message=replace(op.message, on=steps_of(op.message.on)))

    ops = (
        replace(op, body=tuple(map(spread, op.body))) if isinstance(op, For) else op
        for op in program.ops
    )
    return replace(program, ops=tuple(ops))


# ---- unrolled loops


def _by_step(op: Op, steps: list[int], where: Ints) -> Op:
    """Choose(step & rank: X ...)  -->  Choose(step: Choose(rank: X ...) ...)"""
    if not isinstance(op, Choose):
        return op
    asked = (steps_of(tests) for tests, _ in op.cases)
    first: Condition = next((tests for tests in asked if tests), ())
    if not first:
        return op
    on = holds(first, steps, where[:1])[:, 0]
    parts = list[list[Op]]()
    for here in (on, ~on):
        part = [t for t, x in zip(steps, here, strict=True) if x]
        known = np.ones((len(part), len(where)), np.bool_)
        left = chosen(op, part, where, known) if part else []
        if left == [op]:
            raise PlanError("cases of a loop mix steps and ranks")
        parts.append([_by_step(x, part, where) for x in left])
    (inside,), outside = parts
    others = [((), x) for x in outside]
    if outside and isinstance(outside[0], Choose) and _python(outside[0]):
        return Choose(((first, inside), *outside[0].cases))
    return Choose(((first, inside), *others))


def _python(op: Choose) -> bool:
    """True if cases are of steps only."""
    first = op.cases[0][0]
    return bool(first) and first == steps_of(first)
