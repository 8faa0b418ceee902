"""Passes that simplify a program. They change ops, never text.

merge_choices, merge_equal_sums   ops whose conditions exclude each other  -->  one choice
drop_true_tests                   conditions  -->  conditions without tests that always hold
fuse_messages, start_late         Post ... Wait  -->  a Wait that starts its message
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from ringloom.codegen.conditions import Condition, Flags, holds, simplify
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


def optimize(program: Program, passes: Sequence[Pass] | None = None) -> Program:
    """Runs passes on a program, by default those of torch."""
    for run in PASSES if passes is None else passes:
        program = run(program)
    return program


def coordinates_of(program: Program) -> Ints:
    """Returns the coordinates of each rank in the mesh, then the rank: [ranks, axes + 1]."""
    return Loops(program.mesh, 0, ()).coordinates()


def map_runs(program: Program, change: Callable[[Sequence[Op], range, Ints], list[Op]]) -> Program:
    """Changes the ops of each run of steps, given their steps and the coordinates of all ranks."""
    coordinates, ops = coordinates_of(program), list[Op]()
    for op in program.ops:
        match op:
            case For() | At():
                steps = op.steps if isinstance(op, For) else range(op.step, op.step + 1)
                ops.append(replace(op, body=tuple(change(op.body, steps, coordinates))))
            case _:
                ops.append(op)
    return replace(program, ops=tuple(ops))


# ---- choices


def merge_choices(program: Program) -> Program:
    """Choose(a: X), Choose(b: Y)  -->  Choose(a: X, b: Y)      if a and b never both hold."""
    return map_runs(program, _merge_choices)


def merge_equal_sums(program: Program) -> Program:
    """Merges choices as `merge_choices` does, but only if their cases add to the same sums."""
    return map_runs(program, partial(_merge_choices, same_sums=True))


def _merge_choices(
    ops: Sequence[Op], steps: range, coordinates: Ints, same_sums: bool = False
) -> list[Op]:
    merged, covered = list[Op](), np.zeros((len(steps), len(coordinates)), np.bool_)
    for op in ops:
        last = merged[-1] if merged else None
        if not isinstance(op, Choose):
            merged.append(op)
            continue
        on = np.logical_or.reduce([holds(tests, steps, coordinates) for tests, _ in op.cases])
        fits = isinstance(last, Choose) and _only_attends(last) and _only_attends(op)
        if same_sums and last:
            fits = fits and writes(last) == writes(op)
        if isinstance(last, Choose) and fits and not (on & covered).any():
            merged[-1] = Choose((*last.cases, *op.cases))
            covered |= on
        else:
            merged.append(op)
            covered = on
    return merged


def _only_attends(op: Choose) -> bool:
    return all(isinstance(case, Attend) for case in inner(op))


def drop_true_tests(program: Program) -> Program:
    """Removes tests that always hold, and choices that always take the same case."""
    return map_runs(program, simplify_ops)


def simplify_ops(ops: Sequence[Op], steps: range, coordinates: Ints) -> list[Op]:
    """Simplifies the conditions of ops that run in some steps."""
    simplified, always = list[Op](), np.ones((len(steps), len(coordinates)), np.bool_)

    def shorten(message: Message) -> Message:
        return replace(message, on=simplify(message.on, steps, coordinates, always))

    for op in ops:
        match op:
            case Post():
                simplified.append(Post(shorten(op.message)))
            case Wait():
                simplified.append(replace(op, message=shorten(op.message)))
            case Choose():
                simplified += simplify_choice(op, steps, coordinates, always)
            case _:
                simplified.append(op)
    return simplified


def simplify_choice(op: Choose, steps: Sequence[int], coordinates: Ints, known: Flags) -> list[Op]:
    """Drops cases that no rank takes, and tests that earlier cases or `known` imply."""
    cases, remaining = list[tuple[Condition, Op]](), known
    for tests, case in op.cases:
        on = holds(tests, steps, coordinates) & remaining
        if on.any():
            cases.append((simplify(tests, steps, coordinates, remaining), case))
        remaining = remaining & ~on
    if len(cases) == 1 and not cases[0][0]:
        return [cases[0][1]]
    return [Choose(tuple(cases))] if cases else []


# ---- messages


def fuse_messages(program: Program) -> Program:
    """Post(m), Wait(m)  -->  Wait(m, starts)      if no attend or change of m is between them."""
    return replace(program, ops=tuple(_fuse(program.ops, across_attends=False)))


def start_late(program: Program) -> Program:
    """Fuses messages across attends too, for compilers that start messages early by themselves."""
    return replace(program, ops=tuple(_fuse(program.ops, across_attends=True)))


def _fuse(ops: Iterable[Op], across_attends: bool) -> list[Op]:
    fused = [
        with_body(op, _fuse(inner(op), across_attends)) if isinstance(op, For | At) else op
        for op in ops
    ]
    for post in [op for op in fused if isinstance(op, Post)]:
        first, source = fused.index(post), post.message.source.register
        waits = ((n, x) for n, x in enumerate(fused) if isinstance(x, Wait))
        last, wait = next(((n, x) for n, x in waits if x.message == post.message), (0, None))
        if wait is None:
            continue
        between = fused[first + 1 : last]
        changes = any(source in writes(op) for op in between)
        attends = any(isinstance(op, Attend) for op in walk(between))
        if not changes and (across_attends or not attends):
            fused[last] = replace(wait, starts=True)
            del fused[first]
    return fused


PASSES: tuple[Pass, ...] = (merge_choices, drop_true_tests, fuse_messages)
