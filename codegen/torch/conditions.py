"""Conditions of a loop form as Python text, and functions that are written once."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from codegen.text import Flags, Names, expression, signed
from planner.errors import PlanError
from planner.loops.form import Expr, Guard, Ints, Loops, When

AXES = {1: ("rank",), 2: ("outer", "inner"), 3: ("outer", "middle", "inner")}
SIZES = {1: ("RANKS",), 2: ("OUTER", "INNER"), 3: ("OUTER", "MIDDLE", "INNER")}


@dataclass(frozen=True)
class Domain:
    """Some steps in a row, on all ranks."""

    loops: Loops
    first: int
    last: int

    @property
    def steps(self) -> range:
        """The steps."""
        return range(self.first, self.last + 1)

    def table(self, told: Callable[[int, Ints], Ints | Flags]) -> NDArray[np.int64]:
        """Returns the values of `told(step, coordinates)`: [steps, ranks]."""
        coordinates = self.loops.coordinates()
        return np.array([told(t, coordinates) for t in self.steps])


@dataclass(frozen=True, eq=False)
class Condition:
    """A text, and where it holds: [steps, ranks]."""

    text: str
    holds: Flags


def conditions(when: When, domain: Domain, names: Names) -> list[Condition]:
    """The conditions under which a statement runs; all of them hold where it does."""
    shape = len(domain.steps), len(domain.loops.coordinates())
    made = [*_times(when, domain, names, shape), *bounds(when, domain, names)]
    return [c for c in made if not c.holds.all()]


def _times(when: When, domain: Domain, names: Names, shape: tuple[int, ...]) -> Iterator[Condition]:
    step, at = names.step, np.array(domain.steps)
    first, last = when.first - names.first, when.last - names.first
    early, late = at < when.first, at > when.last
    if when.first == when.last:
        yield _said(f"{step} == {first}", at == when.first, shape)
        return
    if first > 1 and early.any() and late.any():
        yield _said(f"{first} <= {step} < {names.count(last + 1)}", ~early & ~late, shape)
    elif early.any() and late.any():
        yield _said(f"0 < {step} < {names.count(last + 1)}", ~early & ~late, shape)
    else:
        yield _said(f"{step} > 0" if first == 1 else f"{step} >= {first}", ~early, shape)
        yield _said(f"{step} < {names.count(last + 1)}", ~late, shape)
    if when.every > 1:
        on = (at - when.first) % when.every < when.width
        clock = f"({step} {signed(-first)})" if first else step
        text = f"{clock} % {when.every}"
        yield _said(f"{text} == 0" if when.width == 1 else f"{text} < {when.width}", on, shape)


def _said(text: str, on: Flags, shape: tuple[int, ...]) -> Condition:
    return Condition(text, np.broadcast_to(on[:, None], shape))


def bounds(when: When, domain: Domain, names: Names) -> Iterator[Condition]:
    """The conditions on a rank's coordinates, each by what its text says."""
    guard = when.guard
    active = np.array([when.on(t) for t in domain.steps])
    if guard.ranks:
        if len(guard.ranks) > 1 or len(names.axes) > 1:
            raise PlanError("a list of ranks per step")
        on = domain.table(lambda _, x: np.isin(x[:, -1], guard.ranks[0])).astype(bool)
        yield Condition(f"{names.axes[0]} in {guard.ranks[0]}", on)
    if guard.spans:
        raise PlanError("first and last steps of each rank")
    for bound in guard.bounds:
        meant = domain.table(Guard((bound,)).at).astype(bool)
        said = _bound(bound, domain, names, active)
        if (said.holds != meant)[active].any():
            raise PlanError("a condition on ranks that goes around the end of an axis")
        yield said


def _bound(
    bound: tuple[int, Expr | None, Expr | None], domain: Domain, names: Names, active: Flags
) -> Condition:
    axis, low, high = bound
    name, x = names.coordinate(axis), domain.table(lambda _, c: c[:, axis])
    if not low or not high:
        e = low or high
        assert e is not None
        edge = domain.table(e.at)
        return Condition(_compared(name, low, high, names), x >= edge if low else x <= edge)
    lows, highs = domain.table(low.at), domain.table(high.at)
    if (lows == highs)[active].all():
        return Condition(f"{name} == {expression(low, names)}", x == lows)
    if (lows <= highs)[active].all():
        text = f"{expression(low, names)} <= {name} <= {expression(high, names)}"
        return Condition(text, (lows <= x) & (x <= highs))
    n = domain.loops.mesh[axis] if axis >= 0 else len(domain.loops.coordinates())
    text = f"({_difference(name, low, names)}) % {n} <= ({_difference(high, low, names)}) % {n}"
    return Condition(text, (x - lows) % n <= (highs - lows) % n)


def _difference(left: Expr | str, right: Expr, names: Names) -> str:
    first = left if isinstance(left, str) else expression(left, names)
    second = expression(right, names)
    return f"{first} - ({second})" if " " in second else f"{first} - {second}"


def _compared(x: str, low: Expr | None, high: Expr | None, names: Names) -> str:
    e = low or high
    assert e is not None
    near = replace(e, constant=e.constant + (-1 if low else 1))
    plain, strict = expression(e, names), expression(near, names)
    if not e.modulo and len(strict) < len(plain):
        return f"{x} {'>' if low else '<'} {strict}"
    return f"{x} {'>=' if low else '<='} {plain}"


def needed(said: Sequence[Condition], where: Flags) -> list[Condition]:
    """The conditions that are left to be asked where `where` is known to hold."""
    kept = list(said)
    goal = np.logical_and.reduce([where, *(c.holds for c in said)])
    for c in said:
        others = [x for x in kept if x is not c]
        if (np.logical_and.reduce([where, *(x.holds for x in others)]) == goal).all():
            kept = others
    return kept


def both(said: Sequence[Condition]) -> str:
    """The text of all conditions together; "" for none."""
    return " and ".join(c.text for c in said)


# ---- functions that both passes share, each written once


@dataclass
class Definitions:
    """The functions of a program by their names."""

    functions: dict[str, list[str]] = field(default_factory=dict)

    def define(self, name: str, lines: Sequence[str]) -> str:
        """The name of a function of these lines, whose first one has NAME in it."""
        for n in ("", "_backward", *(f"_{i}" for i in range(3, 20))):
            body = [line.replace("NAME", name + n, 1) for line in lines[:1]] + [*lines[1:]]
            if self.functions.setdefault(name + n, body) == body:
                return name + n
        raise PlanError(f"too many functions {name}")

    def lines(self) -> Iterator[str]:
        """All of them, two empty lines before each."""
        for body in self.functions.values():
            yield from ("", "", *body)
