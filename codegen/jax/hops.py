"""Messages from device to device: one ppermute each, as functions that the schedule calls."""

from dataclasses import dataclass, field, replace

import numpy as np

from codegen.jax.words import Names, call, comparison, expression, linear
from planner.errors import PlanError
from planner.loops.expand import receivers
from planner.loops.form import Expr, Ints, Loops, Send, Shift

Steps = tuple[int, ...]


@dataclass(frozen=True)
class Hop:
    """A function of messages: its name, and whether it takes the step."""

    name: str
    stepwise: bool

    def of(self, value: str, step: str) -> str:
        """A call of it."""
        return f"{self.name}({value}, axis{f', {step}' if self.stepwise else ''})"


@dataclass
class Hops:
    """The hop functions of a program, each once."""

    loops: Loops
    texts: dict[str, list[str]] = field(default_factory=dict)

    def add(self, title: str, s: Send, steps: Steps, names: Names, sums: bool) -> Hop:
        """The function for a send in these steps; `title` is its name unless that is taken.

        Of inputs more may be sent than planned, where that makes one list of pairs do for all
        steps: nobody reads what arrives.
        """
        stepwise = is_stepwise(s)
        to, where = _receiver(s, self.loops, names), ""
        if stepwise or not self._everybody(s, steps):
            where = self._senders(s, steps, names, stepwise, sums)
        lines = _body(to, where, s.tensors == ("OUT",))
        lines = [f"({'x, axis, step' if stepwise else 'x, axis'}):", *lines]
        for number in range(1, 100):
            name = title if number == 1 else f"{title}_{number}"
            if self.texts.setdefault(name, lines) == lines:
                return Hop(name, stepwise)
        raise PlanError("more than 99 ways of messages")

    def _sending(self, s: Send, t: int) -> Ints:
        """Which ranks send in a step: bool [ranks]."""
        at = self.loops.coordinates()
        to = receivers(self.loops, s, t, at)
        on = s.when.guard.at(t, at[to] if s.when.guard.receiver else at) & (to >= 0)
        return on

    def _everybody(self, s: Send, steps: Steps) -> bool:
        return all(self._sending(s, t).all() for t in steps if s.when.on(t))

    def _senders(self, s: Send, steps: Steps, names: Names, stepwise: bool, sums: bool) -> str:
        """The condition on r and to, a rank and its receiver, "" for none."""
        if stepwise:
            return _guard(s, self.loops, names)
        at = self.loops.coordinates()
        active = [self._sending(s, t) for t in steps if s.when.on(t)]
        union = np.logical_or.reduce(active)
        if sums and s.tensors == ("OUT",) and not all((a == union).all() for a in active):
            return ""
        to = receivers(self.loops, s, steps[0], at)
        for name, ranks in (("r", np.flatnonzero(union)), ("to", np.sort(to[union]))):
            if len(ranks) and len(ranks) == ranks[-1] - ranks[0] + 1:
                low, high = int(ranks[0]), int(ranks[-1])
                return _between(name, low, high, len(at))
        return ""

    def lines(self) -> list[str]:
        """The functions, two empty lines before each."""
        return [line for name, body in self.texts.items() for line in ("", "", f"def {name}{body[0]}", *body[1:])]


def is_stepwise(s: Send) -> bool:
    """True if the way of a message changes with the step."""
    return isinstance(s.hop, Shift) and any(e.step for e in s.hop.by)


def _between(name: str, low: int, high: int, ranks: int) -> str:
    if high == ranks - 1:
        return "" if low == 0 else f"{name} >= {low}"
    return f"{name} <= {high}" if low == 0 else f"{low} <= {name} <= {high}"


def _body(to: str, where: str, neutral: bool) -> list[str]:
    everybody = f"[(r, {to}) for r in range(RANKS)]"
    if not where:
        return call(4, "return lax.ppermute(", ["x", "axis", everybody])
    chosen = f"[(r, to) for r, to in pairs if {where}]"
    lines = [f"    pairs = {everybody}"]
    if not neutral:
        return [*lines, *call(4, "return lax.ppermute(", ["x", "axis", chosen])]
    return [
        *lines,
        f"    pairs = {chosen}",
        "    out, lse = lax.ppermute(x, axis, pairs)",
        "    arrived = jnp.isin(lax.axis_index(axis), jnp.array([to for _, to in pairs]))",
        "    return out, jnp.where(arrived, lse, -jnp.inf)",
    ]


def _receiver(s: Send, loops: Loops, names: Names) -> str:
    """The receiver of rank r as text."""
    if not isinstance(s.hop, Shift):
        raise PlanError("messages along a list of ranks")
    hops = [(axis, e) for axis, e in enumerate(s.hop.by) if e != Expr()]
    if len(hops) != 1:
        raise PlanError("messages along two axes at once")
    ((axis, e),) = hops
    n, below = loops.mesh[axis], int(np.prod(loops.mesh[axis + 1 :]))
    if e.modulo or any(e.axes) or e.period > 1:
        raise PlanError("messages whose way depends on the rank")
    if axis == 0:
        shift = replace(e, constant=e.constant * below, step=e.step * below)
        return f"({_shifted('r', shift, names)}) % RANKS"
    if below == 1:
        size = names.sizes[axis]
        return f"r // {size} * {size} + ({_shifted('r', e, names)}) % {size}"
    raise PlanError("messages along the middle one of three axes")


def _shifted(name: str, e: Expr, names: Names) -> str:
    terms = [(1, name), (e.step, names.step)]
    return linear(terms, e.constant)


def _guard(s: Send, loops: Loops, names: Names) -> str:
    """Plain Python for a guard in a step, of r or of its receiver `to`."""
    guard = s.when.guard
    if guard.tabled or len(loops.mesh) > 1:
        raise PlanError("messages of some ranks only, by a list")
    name, texts = "to" if guard.receiver else "r", list[str]()
    if any(e is not None and any(e.axes) for _, *ends in guard.bounds for e in ends):
        raise PlanError("messages of ranks that depend on the rank in another way")
    for _, low, high in guard.bounds:
        lo, hi = (None if e is None else expression(e, names) for e in (low, high))
        texts.append(comparison(name, lo, hi).replace(") & (", ") and ("))
    return " and ".join(texts)
