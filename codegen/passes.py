"""The passes over a program, in their order; all of them are functions of ops, none of text.

exclusive    ops under conditions that exclude each other   -->  cases of one choice
asked        conditions                                     -->  without tests that always hold
fused, late  Post ... Wait with nothing computed between    -->  a Wait that starts its message
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from ringloom.codegen.conditions import Condition, Flags, holds, simplified
from ringloom.codegen.ir import (
    At,
    Attend,
    Choose,
    For,
    Message,
    Op,
    Post,
    Program,
    Wait,
    inner,
    walk,
    with_body,
    writes,
)
from ringloom.planner.loops.form import Ints, Loops

Pass = Callable[[Program], Program]


def optimized(program: Program, passes: Sequence[Pass] | None = None) -> Program:
    """The program after all passes, those of torch unless others are given."""
    for run in PASSES if passes is None else passes:
        program = run(program)
    return program


def coordinates_of(program: Program) -> Ints:
    """The coordinates of each rank of its mesh, then the rank: [ranks, axes + 1]."""
    return Loops(program.mesh, 0, ()).coordinates()


def in_frames(program: Program, change: Callable[[Sequence[Op], range, Ints], list[Op]]) -> Program:
    """The program with the ops of each run of steps changed."""
    where, made = coordinates_of(program), list[Op]()
    for op in program.ops:
        match op:
            case For() | At():
                steps = op.steps if isinstance(op, For) else range(op.step, op.step + 1)
                made.append(replace(op, body=tuple(change(op.body, steps, where))))
            case _:
                made.append(op)
    return replace(program, ops=tuple(made))


# ---- choices


def exclusive(program: Program) -> Program:
    """Choose(a: X), Choose(b: Y)  -->  Choose(a: X, b: Y)      where a and b never both hold."""
    return in_frames(program, _exclusive)


def alike(program: Program) -> Program:
    """The same for cases that add to the same sums."""
    return in_frames(program, partial(_exclusive, same=True))


def _exclusive(ops: Sequence[Op], steps: range, where: Ints, same: bool = False) -> list[Op]:
    made, taken = list[Op](), np.zeros((len(steps), len(where)), np.bool_)
    for op in ops:
        last = made[-1] if made else None
        if not isinstance(op, Choose):
            made.append(op)
            continue
        on = np.logical_or.reduce([holds(tests, steps, where) for tests, _ in op.cases])
        fits = isinstance(last, Choose) and _attends(last) and _attends(op)
        if same and last:
            fits = fits and writes(last) == writes(op)
        if isinstance(last, Choose) and fits and not (on & taken).any():
            made[-1] = Choose((*last.cases, *op.cases))
            taken |= on
        else:
            made.append(op)
            taken = on
    return made


def _attends(op: Choose) -> bool:
    return all(isinstance(case, Attend) for case in inner(op))


def asked(program: Program) -> Program:
    """Leave out the tests that always hold where they are asked, and choices that are none."""
    return in_frames(program, asked_in)


def asked_in(ops: Sequence[Op], steps: range, where: Ints) -> list[Op]:
    """The same for the ops of some steps."""
    made, everywhere = list[Op](), np.ones((len(steps), len(where)), np.bool_)

    def short(message: Message) -> Message:
        return replace(message, on=simplified(message.on, steps, where, everywhere))

    for op in ops:
        match op:
            case Post():
                made.append(Post(short(op.message)))
            case Wait():
                made.append(replace(op, message=short(op.message)))
            case Choose():
                made += chosen(op, steps, where, everywhere)
            case _:
                made.append(op)
    return made


def chosen(op: Choose, steps: Sequence[int], where: Ints, known: Flags) -> list[Op]:
    """The cases that are ever taken, each asked only for what those before it leave open."""
    cases, left = list[tuple[Condition, Op]](), known
    for tests, case in op.cases:
        on = holds(tests, steps, where) & left
        if on.any():
            cases.append((simplified(tests, steps, where, left), case))
        left = left & ~on
    if len(cases) == 1 and not cases[0][0]:
        return [cases[0][1]]
    return [Choose(tuple(cases))] if cases else []


# ---- messages


def fused(program: Program) -> Program:
    """Post(m), Wait(m)  -->  Wait(m, starts)      where nothing is computed or changed between."""
    return replace(program, ops=tuple(_fused(program.ops, idle=True)))


def late(program: Program) -> Program:
    """The same where something is computed between, for compilers that start messages early."""
    return replace(program, ops=tuple(_fused(program.ops, idle=False)))


def _fused(ops: Iterable[Op], idle: bool) -> list[Op]:
    made = [
        with_body(op, _fused(inner(op), idle)) if isinstance(op, For | At) else op for op in ops
    ]
    for post in [op for op in made if isinstance(op, Post)]:
        first, source = made.index(post), post.message.source.register
        waits = (n for n, x in enumerate(made) if isinstance(x, Wait) and x.message == post.message)
        if (last := next(waits, None)) is None:
            continue
        wait, between = made[last], made[first + 1 : last]
        assert isinstance(wait, Wait)
        changed = any(source in writes(op) for op in between)
        if not changed and not (idle and any(isinstance(op, Attend) for op in walk(between))):
            made[last] = replace(wait, starts=True)
            del made[first]
    return made


PASSES: tuple[Pass, ...] = (exclusive, asked, fused)
