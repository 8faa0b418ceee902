"""split_loops   For(steps, body)   -->  runs of steps with the same operations

For targets that trace loops. A target can roll a loop if all of its steps send the same messages
between the same ranks and take the same tokens. A loop is therefore split where ranks take other
cases or, if that gives many runs, where other messages are sent. A loop that would be split into
too many runs is unrolled by the target instead; then tests of the step enclose tests of the rank.
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
from ringloom.codegen.passes import coordinates_of, simplify_choice, simplify_ops
from ringloom.planner.errors import PlanError
from ringloom.planner.loops.form import Ints

MAX_RUNS = 3  # of steps into which a loop is split


def can_roll(loop: For) -> bool:
    """Returns True if the steps of a loop differ only in numbers that can be traced."""
    ops = [*walk(loop.body)]
    messages = [op.message for op in ops if isinstance(op, Post | Wait)]
    return not any(map(_changes_with_step, messages)) and not any(map(_cuts_by_step, ops))


def _changes_with_step(message: Message) -> bool:
    """Returns True if a message is sent only in some steps, or connects other ranks in each."""
    by = message.route.by if isinstance(message.route, Hop) else ()
    return any(e.step for e in by) or any(map(_tests_step, message.on))


def _tests_step(test: Test) -> bool:
    """Returns True for a test that depends on the step."""
    if isinstance(test, Bound):
        return any(e is not None and e.step != 0 for e in (test.low, test.high))
    return isinstance(test, Steps | Every | Span)


def _cuts_by_step(op: Op) -> bool:
    """Returns True if the tokens, or several head slices, that an op takes depend on the step."""
    ends = [e for part in slices(op) for e in part.pieces or ()]
    heads = [part.heads for part in slices(op) if part.heads and part.heads[0] != part.heads[1]]
    return any(e.step for e in (*ends, *(e for pair in heads for e in pair)))


# ---- runs of steps


def split_loops(program: Program) -> Program:
    """Splits loops into single steps and loops that can be rolled, or leaves them unrolled."""
    ops, coordinates = list[Op](), coordinates_of(program)
    for op in program.ops:
        ops += _split(op, coordinates) if isinstance(op, For) else [op]
    return replace(program, ops=tuple(ops))


def _split(loop: For, coordinates: Ints) -> list[Op]:
    for behaviour in (_taken_cases, _sends):
        keys = [tuple(behaviour(op, [t], coordinates) for op in loop.body) for t in loop.steps]
        pairs = zip(keys, loop.steps, strict=True)
        runs = [[t for _, t in group] for _, group in groupby(pairs, lambda pair: pair[0])]
        parts = [_part(loop.body, range(run[0], run[-1] + 1), coordinates) for run in runs]
        loops = [op for op in parts if isinstance(op, For)]
        single_steps = any(isinstance(a, At) and isinstance(b, At) for a, b in pairwise(parts))
        fits = len(parts) <= MAX_RUNS and not single_steps if loops else len(parts) < MAX_RUNS
        if fits and all(map(can_roll, loops)):
            return [*parts]
    limited = (_limit(op, loop.steps, coordinates) for op in loop.body)
    body = tuple(_test_steps_first(op, [*loop.steps], coordinates) for op in limited)
    return [replace(loop, body=body)]


def _limit(op: Op, steps: range, coordinates: Ints) -> Op:
    """Limits the condition of a message to the steps in which some rank sends it."""
    if not isinstance(op, Post | Wait):
        return op
    on = [t for t, row in zip(steps, _senders(op, steps, coordinates), strict=True) if row.any()]
    if steps_of(op.message.on) or len(on) == len(steps) or on != [*range(on[0], on[-1] + 1)]:
        return op
    first = on[0] if on[0] > steps[0] else None
    last = on[-1] if on[-1] < steps[-1] else None
    message = replace(op.message, on=(Steps(first, last), *op.message.on))
    return replace(op, message=message)


def _part(body: Sequence[Op], steps: range, coordinates: Ints) -> Op:
    """Returns some steps of a loop, without messages that no rank sends in them."""
    sent = [op for op in body if all(_sends(op, steps, coordinates))]
    ops = tuple(map(_complete, simplify_ops(sent, steps, coordinates)))
    return For(steps, ops) if len(steps) > 1 else At(steps[0], ops)


def _complete(op: Op) -> Op:
    """Marks a Wait as not partial if all ranks receive its message."""
    if isinstance(op, Wait) and isinstance(op.message.route, Hop) and not op.message.on:
        return replace(op, partial=False)
    return op


def _senders(op: Post | Wait, steps: Sequence[int], coordinates: Ints) -> Flags:
    """Marks the steps and ranks that send the message of an op: [steps, ranks]."""
    return holds(op.message.on, steps, coordinates)


def _taken_cases(op: Op, steps: Sequence[int], coordinates: Ints) -> tuple[bool, ...]:
    """Marks the cases of a choice that some rank takes in these steps; for other ops, `_sends`."""
    if not isinstance(op, Choose):
        return _sends(op, steps, coordinates)
    remaining, taken = np.ones((len(steps), len(coordinates)), np.bool_), list[bool]()
    for tests, _ in op.cases:
        on = holds(tests, steps, coordinates) & remaining
        taken.append(bool(on.any()))
        remaining = remaining & ~on
    return tuple(taken)


def _sends(op: Op, steps: Sequence[int], coordinates: Ints) -> tuple[bool, ...]:
    """Returns (False,) for a message that no rank sends in these steps, (True,) for other ops."""
    return (not isinstance(op, Post | Wait) or bool(_senders(op, steps, coordinates).any()),)


def count_unrolled(program: Program) -> int:
    """Counts the loops that cannot be rolled."""
    return sum(isinstance(op, For) and not can_roll(op) for op in program.ops)


def send_from_all_ranks(program: Program, sums: bool) -> Program:
    """Lets all ranks send the messages of loops, those of accumulators only if `sums` is True.

    This is correct if the added messages carry zeros, or inputs that no rank reads: run `check`.
    """

    def drop_ranks(op: Op) -> Op:
        if not isinstance(op, Post | Wait) or not isinstance(op.message.route, Hop):
            return op
        if op.message.source.register.accumulates and not sums:
            return op
        return replace(op, message=replace(op.message, on=steps_of(op.message.on)))

    ops = (
        replace(op, body=tuple(map(drop_ranks, op.body))) if isinstance(op, For) else op
        for op in program.ops
    )
    return replace(program, ops=tuple(ops))


# ---- unrolled loops


def _test_steps_first(op: Op, steps: list[int], coordinates: Ints) -> Op:
    """Choose(step & rank: X ...)  -->  Choose(step: Choose(rank: X ...) ...)"""
    if not isinstance(op, Choose):
        return op
    step_tests = (steps_of(tests) for tests, _ in op.cases)
    first: Condition = next((tests for tests in step_tests if tests), ())
    if not first:
        return op
    on = holds(first, steps, coordinates[:1])[:, 0]
    branches = list[list[Op]]()
    for flags in (on, ~on):
        part = [t for t, flag in zip(steps, flags, strict=True) if flag]
        known = np.ones((len(part), len(coordinates)), np.bool_)
        ops = simplify_choice(op, part, coordinates, known) if part else []
        if ops == [op]:
            raise PlanError("the cases of a loop mix steps and ranks")
        branches.append([_test_steps_first(x, part, coordinates) for x in ops])
    (inside,), outside = branches
    others = [((), x) for x in outside]
    if outside and isinstance(outside[0], Choose) and _tests_only_steps(outside[0]):
        return Choose(((first, inside), *outside[0].cases))
    return Choose(((first, inside), *others))


def _tests_only_steps(op: Choose) -> bool:
    """Returns True if the first case of a choice depends on the step alone."""
    first = op.cases[0][0]
    return bool(first) and first == steps_of(first)
