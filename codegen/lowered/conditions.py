"""Conditions of a loop form as Python text, each checked by evaluating it.

A condition is a guess at what a person would write, the simplest first; the first guess that holds
on exactly the steps and ranks that the form means is taken. Nothing else says what a text means.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise, product

import numpy as np

from codegen.text import Flags, Names, entered, expression, numbered, signed
from planner.errors import PlanError
from planner.loops.form import Expr, Guard, Ints, Loops, When

AXES = {1: ("rank",), 2: ("outer", "inner"), 3: ("outer", "middle", "inner")}
SIZES = {1: ("RANKS",), 2: ("OUTER", "INNER"), 3: ("OUTER", "MIDDLE", "INNER")}
Bound = tuple[int, Expr | None, Expr | None]
LEAST, MOST = (re.compile(rf"(\w+) ({sign}=?) ([^<>=!]+)") for sign in "><")  # bounds of a name


@dataclass(frozen=True)
class Domain:
    """Some steps, on all ranks, and what they are called."""

    loops: Loops
    steps: Sequence[int]
    names: Names

    @property
    def shape(self) -> tuple[int, int]:
        """Steps and ranks."""
        return len(self.steps), int(np.prod(self.loops.mesh))

    @property
    def everywhere(self) -> Flags:
        """All of it: [steps, ranks]."""
        return np.ones(self.shape, np.bool_)

    def table(self, told: Callable[[int, Ints], Ints | Flags]) -> Ints:
        """Returns the values of `told(step, coordinates)`: [steps, ranks]."""
        coordinates = self.loops.coordinates()
        return np.array([told(t, coordinates) for t in self.steps], np.intp)

    def evaluate(self, text: str) -> Flags:
        """Where a text for arrays holds: [steps, ranks]."""
        names = self.names
        known: dict[str, object] = {
            "RANKS": self.shape[1],
            "jnp": np,
            names.rank: self.loops.coordinates()[:, -1],
        }
        known |= (
            names.data
            | names.values
            | dict(zip(names.axes, self.loops.coordinates().T, strict=False))
        )
        known[names.step] = np.array(self.steps)[:, None] - names.first
        holds = eval(text or "True", {"__builtins__": {}}, known)
        return np.broadcast_to(np.asarray(holds, np.bool_), self.shape)


@dataclass(frozen=True, eq=False)
class Condition:
    """A comparison that holds where `holds` says: [steps, ranks].

    `text` is for one rank, `array` for arrays of ranks.
    """

    text: str
    array: str
    holds: Flags


def conditions(when: When, domain: Domain) -> list[Condition]:
    """The conditions under which a statement runs; all of them hold where it does."""
    active = np.array([when.on(t) for t in domain.steps])
    steps = [t for t, on in zip(domain.steps, active, strict=True) if on]
    made = [*times(steps, domain), *bounds(when.guard, domain, active[:, None])]
    return [c for c in made if not c.holds.all()]


def times(steps: Sequence[int], domain: Domain) -> list[Condition]:
    """The conditions under which a step of a domain is one of some."""
    names, wanted = domain.names, np.isin(domain.steps, steps)
    step = names.step
    first, last = steps[0] - names.first, steps[-1] - names.first
    low, high = steps[0] > domain.steps[0], steps[-1] < domain.steps[-1]
    least = f"{step} {'> 0' if first == 1 else f'>= {first}'}"
    most = f"{step} < {names.count(last + 1)}"
    if high and first == last:
        return [_said(domain, f"{step} == {first}")]
    ends = [(), *[(least,)] * low, *[(most,)] * high, *[(least, most)] * (low and high)]
    for end, pause in product(ends, [[], *([text] for text in _pauses(steps, domain))]):
        made = [_said(domain, text) for text in (*end, *pause)]
        if np.array_equal(together(made, domain.everywhere)[:, 0], wanted):
            return made
    raise PlanError("a loop would leave out steps that follow no rule")


def _pauses(steps: Sequence[int], domain: Domain) -> Iterator[str]:
    """Conditions that repeat where steps pause at equal distances, or leave out one step."""
    names, step = domain.names, domain.names.step
    rest = [t for t in domain.steps if steps[0] <= t <= steps[-1] and t not in steps]
    pauses = [(a, b) for a, b in pairwise(steps) if b - a > 1]
    ends, begins = [*(a for a, _ in pauses), steps[-1]], [steps[0], *(b for _, b in pauses)]
    for every in [ends[1] - ends[0], begins[1] - begins[0]] if pauses else []:
        size, since = names.sizes.get(every, every), steps[0] - names.first
        left = sorted({(t - names.first) % every for t in steps})
        yield f"{step} % {size} {_among(left, every)}"
        left = sorted({(t - steps[0]) % every for t in steps})
        yield f"({step} {signed(-since)}) % {size} {_among(left, every)}"
    if len(rest) == 1:
        yield f"{step} != {rest[0] - names.first}"


def _among(left: Sequence[int], every: int) -> str:
    """The comparison of a remainder with the numbers that are left, if these follow each other."""
    if len(left) == 1:
        return f"== {left[0]}"
    return f">= {left[0]}" if left[-1] == every - 1 else f"< {left[-1] + 1}"


def bounds(guard: Guard, domain: Domain, known: Flags | None = None) -> Iterator[Condition]:
    """The conditions on a rank's coordinates; where nothing is `known` they may say anything."""
    asked = np.ones(domain.shape, bool) if known is None else np.broadcast_to(known, domain.shape)
    axes = domain.names.axes
    if guard.spans:
        yield from spanned(guard, domain, asked)
    if guard.ranks and len(axes) > 1:
        raise PlanError("which ranks take part in a step follows no formula")
    if guard.ranks:
        listed = domain.names.listed(guard.ranks)
        each = [f"({axes[0]} == {r})" for r in guard.ranks]
        text = f"{axes[0]} in {listed}" if len(each) > 1 else each[0][1:-1]
        array = f"jnp.isin({axes[0]}, jnp.array({listed}))" if listed.isidentifier() else ""
        yield _said(domain, text, array or " | ".join(each))
    for bound in guard.bounds:
        meant = domain.table(Guard((bound,)).at).astype(bool)
        for said in _guesses(bound, domain):
            if (together(said, domain.everywhere) == meant)[asked].all():
                yield from said
                break
        else:
            raise PlanError("which ranks take part in a step follows no formula")


def spanned(guard: Guard, domain: Domain, asked: Flags) -> Iterator[Condition]:
    """The conditions that a step is from the first to the last one of its rank: data."""
    names, rank = domain.names, domain.names.coordinate(-1)
    meant = domain.table(guard.at).astype(bool)
    if names.at is not None:
        yield from bounds(Guard(ranks=tuple(np.flatnonzero(meant).tolist())), domain)
        return
    steps = np.array(domain.steps)[:, None] - names.first
    first, last = np.array(guard.spans).T - names.first
    never, begin = first > last, int(steps[asked.any(axis=1)].min())
    late = "LAST", "<=", np.where(never, begin - 1, last)
    early = "FIRST", ">=", np.where(never, last.max() + 1, first)
    fits = (steps <= late[2], (late,)), (steps >= early[2], (early,)), (meant, (early, late))
    ends = next(needs for holds, needs in fits if (holds == meant)[asked].all())
    for title, sign, x in ends:
        data, asks = entered(names.data, numbered(title), tuple(x.tolist())), f"{names.step} {sign}"
        yield _said(domain, f"{asks} {data}[{rank}]", f"{asks} jnp.array({data})[{rank}]")


def _said(domain: Domain, text: str, array: str = "") -> Condition:
    """A condition that holds where its text for arrays does."""
    return Condition(text, array or text, domain.evaluate(array or text))


def _guesses(bound: Bound, domain: Domain) -> Iterator[list[Condition]]:
    """Conditions that may together say a bound."""
    (axis, low, high), names, said = bound, domain.names, partial(_said, domain)
    x = names.coordinate(axis)
    ends = [said(f"{x} {_compared(e, k, names)}") for e, k in ((low, -1), (high, 1)) if e]
    lo, hi = (e and expression(e, names) for e in (low, high))
    if lo and hi:
        yield [said(f"{x} == {lo}")]
    yield from ([end] for end in ends)
    if not high or not lo or not hi:
        return
    yield ends
    n = domain.loops.mesh[axis] if axis >= 0 else domain.shape[1]
    yield [said(f"{x} != {expression(_more(high, 1), names)}")]
    yield [said(f"not {hi} < {x} < {lo}", f"({x} >= {lo}) | ({x} <= {hi})")]
    yield [said(f"({_difference(x, lo)}) % {n} <= ({_difference(hi, lo)}) % {n}")]


def _difference(left: str, right: str) -> str:
    return f"{left} - ({right})" if " " in right else f"{left} - {right}"


def _more(e: Expr, by: int) -> Expr:
    return replace(e, constant=e.constant + by)


def _compared(e: Expr, beside: int, names: Names) -> str:
    """At least a number, or at most (`beside` it is the next one that is not)."""
    plain, strict = expression(e, names), expression(_more(e, beside), names)
    if not e.modulo and len(strict) < len(plain):
        return f"{'>' if beside < 0 else '<'} {strict}"
    return f"{'>=' if beside < 0 else '<='} {plain}"


def together(said: Sequence[Condition], where: Flags) -> Flags:
    """Where all of them hold, of what is known to hold."""
    holds: Flags = np.logical_and.reduce([where, *(c.holds for c in said)])
    return holds


def needed(said: Sequence[Condition], where: Flags) -> list[Condition]:
    """The conditions that are left to be asked where `where` is known to hold."""
    kept, goal = list(said), together(said, where)
    for c in said:
        others = [x for x in kept if x is not c]
        if (together(others, where) == goal).all():
            kept = others
    return kept


def both(said: Sequence[Condition]) -> str:
    """The text of all conditions together, `a < x < b` for two ends in a row; "" for none."""
    texts = list[str]()
    for c in said:
        least, most = LEAST.fullmatch(texts[-1] if texts else ""), MOST.fullmatch(c.text)
        if least and most and least[1] == most[1]:
            texts[-1] = f"{least[3]} {least[2].replace('>', '<')} {c.text}"
        else:
            texts.append(c.text)
    return " and ".join(texts)


def on_arrays(said: Sequence[Condition]) -> str:
    """The text of all conditions together for arrays of ranks; "" for none."""
    texts = [c.array for c in said]
    return texts[0] if len(texts) == 1 else " & ".join(f"({text})" for text in texts)
