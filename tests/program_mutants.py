"""Mutants of programs: one op left out, moved, or with one of its fields changed."""

from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

from codegen.conditions import Bound, Every, Listed, Span, Steps
from codegen.ir import (
    At,
    Attend,
    Choose,
    Clear,
    For,
    Let,
    Message,
    Op,
    Place,
    Post,
    Program,
    Reduce,
    Register,
    Slice,
    Swap,
    SwapBack,
    Wait,
    Zero,
)
from planner.loops.form import Expr

WORDS = {"handle", "tensors", "exchanged", "complete"}  # names of things, and types


def mutants(program: Program) -> Iterator[tuple[str, Program]]:
    """Each mutant of the ops, with what was done."""
    for how, ops in of_ops(program.ops):
        yield how, replace(program, ops=tuple(ops))


def of_ops(ops: Sequence[Op]) -> Iterator[tuple[str, list[Op]]]:
    """The same ops but for one."""
    for n, op in enumerate(ops):
        yield f"without {op}", [*ops[:n], *ops[n + 1 :]]
        if n + 1 < len(ops):
            yield f"{op} later", [*ops[:n], ops[n + 1], op, *ops[n + 2 :]]
        for how, changed in of_op(op):
            yield how, [*ops[:n], changed, *ops[n + 1 :]]


def of_op(op: Op) -> Iterator[tuple[str, Op]]:
    """The same op with one field changed."""
    match op:
        case For() | At():
            for how, body in of_ops(op.body):
                yield how, replace(op, body=tuple(body))
        case Choose():
            for n, (asked, case) in enumerate(op.cases):
                first, rest = op.cases[:n], op.cases[n + 1 :]
                yield f"without {case}", Choose((*first, *rest))
                for tests in of_value(asked):
                    yield f"{asked} -> {tests}", Choose((*first, (tests, case), *rest))
                for how, changed in of_op(case):
                    yield how, Choose((*first, (asked, changed), *rest))
        case Post() | Wait() | Let() | Zero() | Clear() | Attend():
            for changed in of_value(op):
                yield f"{op} -> {changed}", changed


def of_value(value: Any) -> Iterator[Any]:
    """Values that differ in one place."""
    match value:
        case bool():
            yield not value
        case Expr():
            yield from (replace(value, constant=value.constant + by) for by in (1, -1))
            if value.step:
                yield replace(value, step=-value.step)
        case Steps(first, last):
            yield from (replace(value, first=first + by) for by in (1, -1) if first is not None)
            yield from (replace(value, last=last + by) for by in (1, -1) if last is not None)
        case Every():
            yield replace(value, first=value.first + 1)
        case Bound(_, low, high, _):
            yield from (replace(value, low=x) for x in of_value(low))
            yield from (replace(value, high=x) for x in of_value(high))
        case Span(first, last):
            yield replace(value, first=first[1:] + first[:1])
            yield replace(value, last=last[1:] + last[:1])
        case Listed(ranks):
            yield Listed(ranks[1:])
        case Register(of, name):
            other = "own" if name != "own" else "A"
            yield Register(of, other)
        case Swap() | SwapBack() | Reduce():
            yield replace(value, sort=not value.sort)
        case tuple():
            for n, item in enumerate(value):
                for changed in of_value(item):
                    yield (*value[:n], changed, *value[n + 1 :])
        case "full" | "causal" | "strict" | "tiles":
            yield "causal" if value == "full" else "full"
        case Message() | Slice() | Place() | Attend() | Post() | Wait() | Let() | Zero() | Clear():
            for field in fields(value):
                if field.name not in WORDS:
                    for changed in of_value(getattr(value, field.name)):
                        yield replace(value, **{field.name: changed})
        case _ if is_dataclass(value):
            for field in fields(value):
                for changed in of_value(getattr(value, field.name)):
                    yield replace(value, **{field.name: changed})
