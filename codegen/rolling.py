"""Passes for targets that trace loops: which are rolled, what they carry, and which are unrolled.

rolled   For(steps, body)                             -->  runs of steps in which the same happens
late     Post ... Wait, the source unchanged between  -->  a Wait that starts its message
unread   a value that nobody reads                    -->  nothing

A loop is rolled where whom its messages connect, and which tokens its slices take, are the same in
all of its steps, and its messages run in all of them. Others are unrolled: there tests of the step
stand around tests of the rank. A message of inputs that ends one step before a loop does goes on
if nobody reads what it brings: so the last step is like the others.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import groupby

import numpy as np

from codegen.conditions import Bound, Condition, Every, Flags, Span, Steps, Test, holds
from codegen.ir import (
    At,
    Choose,
    For,
    Hop,
    Let,
    Message,
    Op,
    Post,
    Program,
    Register,
    Wait,
    Zero,
    inner,
    reads,
    slices,
    walk,
    with_body,
    writes,
)
from codegen.passes import asked_in, chosen, coordinates_of
from planner.errors import PlanError
from planner.loops.form import OWN, Ints

FEW = 3  # runs of a loop that are written one after the other


# ---- what a loop needs


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
    for n, op in enumerate(program.ops):
        after = results(program) | first_read(program.ops[n + 1 :])
        made += _runs(op, after, where) if isinstance(op, For) else [op]
    return replace(program, ops=tuple(made))


def results(program: Program) -> frozenset[Register]:
    """The registers that are read after a program."""
    own = {Register(of, OWN) for of in (("OUT",) if program.pass_ == "forward" else ("DQ", "DKV"))}
    kept = {*program.kept} if program.pass_ == "forward" else set[Register]()
    return frozenset(own | kept | {Register("OUT", r.value) for r in kept if r.of == "q"})


def _runs(loop: For, after: frozenset[Register], where: Ints) -> list[Op]:
    spared = _spared(loop, after, where)
    for alike in (_cases, _messages):
        signs = [tuple(alike(op, t, where) for op in spared.body) for t in loop.steps]
        pairs = zip(signs, loop.steps, strict=True)
        runs = [[t for _, t in group] for _, group in groupby(pairs, lambda pair: pair[0])]
        made = [_part(spared.body, range(run[0], run[-1] + 1), where) for run in runs]
        loops = [op for op in made if isinstance(op, For)]
        if len(runs) <= FEW and (loops or len(runs) < FEW) and all(map(rolls, loops)):
            return [*made]
    body = (_by_step(_within(op, loop.steps, where), [*loop.steps], where) for op in loop.body)
    return [replace(loop, body=tuple(body))]


def _within(op: Op, steps: range, where: Ints) -> Op:
    """An op whose message says the steps in which some rank sends it, if that is not in all."""
    if not isinstance(op, Post | Wait):
        return op
    on = [t for t, row in zip(steps, _sent(op, steps, where), strict=True) if row.any()]
    known = any(isinstance(test, Steps | Every) for test in op.message.on)
    if known or len(on) == len(steps) or on != [*range(on[0], on[-1] + 1)]:
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


def _spared(loop: For, after: frozenset[Register], where: Ints) -> For:
    """A loop whose messages of inputs go on in its last step if nobody reads what they bring."""
    body, last = list(loop.body), loop.steps[-1]
    for n, op in enumerate(body):
        if not isinstance(op, Wait) or op.into.register.accumulates or not op.message.on:
            continue
        if not isinstance(op.message.route, Hop):
            continue
        message, into = op.message, op.into.register
        more = tuple(_open(test, last - 1) for test in message.on)
        unread = into not in after and not any(into in needs(x) for x in body[n + 1 :])
        if unread and holds(more, [last], where).all() and last > loop.steps[0]:
            new = replace(message, on=tuple(x for x in more if x != Steps(None, None)))
            body = [_resent(x, message, new) for x in body]
    return replace(loop, body=tuple(body))


def _open(test: Test, last: int) -> Test:
    """A test that ends with a step, without that end."""
    return Steps(test.first, None) if isinstance(test, Steps) and test.last == last else test


def _resent(op: Op, old: Message, new: Message) -> Op:
    return replace(op, message=new) if isinstance(op, Post | Wait) and op.message == old else op


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
        on = tuple(x for x in op.message.on if isinstance(x, Steps | Every))
        return replace(op, message=replace(op.message, on=on))

    ops = (
        replace(op, body=tuple(map(spread, op.body))) if isinstance(op, For) else op
        for op in program.ops
    )
    return replace(program, ops=tuple(ops))


# ---- values that nobody reads


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


# ---- unrolled loops


def _by_step(op: Op, steps: list[int], where: Ints) -> Op:
    """Choose(step & rank: X ...)  -->  Choose(step: Choose(rank: X ...) ...)"""
    if not isinstance(op, Choose):
        return op
    asked = (tuple(x for x in tests if isinstance(x, Steps | Every)) for tests, _ in op.cases)
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
    return bool(first) and all(isinstance(test, Steps | Every) for test in first)


# ---- messages


def late(program: Program) -> Program:
    """Post(m), Wait(m)  -->  Wait(m, starts)      where what is sent does not change between."""
    return replace(program, ops=tuple(_late(program.ops)))


def _late(ops: Iterable[Op]) -> list[Op]:
    made = [with_body(op, _late(inner(op))) if isinstance(op, For | At) else op for op in ops]
    for post in [op for op in made if isinstance(op, Post)]:
        first, source = made.index(post), post.message.source.register
        waits = (n for n, x in enumerate(made) if isinstance(x, Wait) and x.message == post.message)
        last = next(waits)
        if not any(source in writes(op) for op in made[first + 1 : last]):
            wait = made[last]
            assert isinstance(wait, Wait)
            made[last] = replace(wait, starts=True)
            del made[first]
    return made
