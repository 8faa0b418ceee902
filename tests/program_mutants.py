"""Mutants of programs: a law over the fields of what programs are made of.

Whatever stands in a program has the type that its field declares, and so the type says what else
could stand there: the other truth, the next number, another name or kind, one item less, two in
the other order, something where nothing was. A new op, or a new field, is changed without anybody
thinking of it.
"""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from functools import cache
from itertools import islice
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from ringloom.codegen.conditions import Test
from ringloom.codegen.ir import Choose, Message, Op, Post, Program, Route

Mutant = tuple[str, Any]  # where and how it differs, and what it is
NAMES = 3  # other names that take the place of one


def mutants(program: Program) -> Iterator[tuple[str, Program]]:
    """Each program that differs in one place."""
    yield from _Mutants(program).of(program, Program)


@cache
def hints(kind: type) -> dict[str, Any]:
    """The fields of a class and their types."""
    return {
        name: hint
        for name, hint in get_type_hints(kind).items()
        if name in (getattr(kind, "_fields", None) or [field.name for field in fields(kind)])
    }


def everything() -> Program:
    """A program that has each op, route and condition once: it means nothing."""
    (message,) = islice(samples(Message), 1)
    routes = (Post(replace(message, route=route)) for route in samples(Route))
    choices = (Choose((((test,), op),)) for test in samples(Test) for op in islice(samples(Op), 1))
    return Program("forward", (1,), (*samples(Op), *routes, *choices), ())


class _Mutants:
    """The mutants of the parts of a program."""

    def __init__(self, program: Program) -> None:
        self.words = dict[str, dict[Any, None]]()  # what stands in fields of strings, by field
        self._read(program)

    def _read(self, value: Any) -> None:
        for name, x in parts(value):
            if isinstance(x, str):
                self.words.setdefault(name, {})[x] = None
            self._read(x)

    def of(self, value: Any, hint: Any, name: str = "") -> Iterator[Mutant]:
        """Yields what else may stand in a field of this name and type."""
        options = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
        if value is None:
            yield from ((f": None -> {x}", x) for x in samples(hint))
            return
        if NoneType in options:
            yield f": {value} -> None", None
        yield from self.kinds(value, options)
        match value:
            case bool():
                yield f": {value} -> {not value}", not value
            case int():
                yield from ((f": {value} -> {value + by}", value + by) for by in (1, -1))
            case str():
                literal = [x for x in options if get_origin(x) is Literal]
                words = get_args(literal[0]) if literal else (*self.words.get(name, ()), "other")
                others = words if literal else islice((x for x in words if x != value), NAMES)
                yield from ((f": {value} -> {x}", x) for x in others if x != value)
            case range():
                for a, b in ((1, 0), (-1, 0), (0, 1), (0, -1)):
                    steps = range(value.start + a, value.stop + b)
                    yield f": {value} -> {steps}", steps
            case tuple() if not hasattr(value, "_fields"):
                yield from self.items(value, options, name)
            case _:
                for field, x in parts(value):
                    for how, other in self.of(x, hints(type(value))[field], field):
                        changed = {**dict(parts(value)), field: other}
                        inside = "." if how[0] != ":" else ""
                        yield f"{type(value).__name__}.{field}{inside}{how}", type(value)(**changed)

    def kinds(self, value: Any, options: tuple[Any, ...]) -> Iterator[Mutant]:
        """The same in another class that has the same fields."""
        for option in options:
            other = isinstance(option, type) and option is not type(value) and is_dataclass(option)
            if other and is_dataclass(value) and hints(option) == hints(type(value)):
                yield f": {value} -> {option.__name__}", option(**dict(parts(value)))

    def items(
        self, values: tuple[Any, ...], options: tuple[Any, ...], name: str
    ) -> Iterator[Mutant]:
        """One item less, two in another order, one that is changed; in an empty one something."""
        (hint,) = (x for x in options if get_origin(x) is tuple)
        each = get_args(hint)
        if many := each[-1:] == (...,):
            yield from ((f": () -> {x}", (x,)) for x in samples(each[0]) if not values)
            each = each[:1] * len(values)
        for n, (value, kind) in enumerate(zip(values, each, strict=True)):
            if many:
                yield f": without {value}", (*values[:n], *values[n + 1 :])
            if many and n and value != values[n - 1]:
                order = (*values[: n - 1], value, values[n - 1], *values[n + 1 :])
                yield f": {value} earlier", order
            for how, other in self.of(value, kind, name):
                yield how, (*values[:n], other, *values[n + 1 :])


def parts(value: Any) -> list[tuple[str, Any]]:
    """The fields of a value, or the items of a tuple."""
    match value:
        case tuple() if not hasattr(value, "_fields"):
            return [("", x) for x in value]
        case _ if is_dataclass(value) or hasattr(value, "_fields"):
            return [(name, getattr(value, name)) for name in hints(type(value))]
    return []


def samples(hint: Any) -> Iterator[Any]:
    """Yields simple values of a type."""
    origin = get_origin(hint) or hint
    if origin in (Union, UnionType):
        for option in get_args(hint):
            yield from samples(option)
    elif origin is Literal:
        yield get_args(hint)[0]
    elif origin is tuple:
        yield tuple(next(samples(x)) for x in get_args(hint) if x is not ...)
    elif origin is range:
        yield range(1)
    elif origin in (bool, int, str):
        yield origin()
    elif origin is not NoneType:
        yield origin(**{name: next(samples(x)) for name, x in hints(origin).items()})
