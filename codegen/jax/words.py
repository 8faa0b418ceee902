"""Expressions, conditions and calls as Python text."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from planner.errors import PlanError
from planner.loops.form import Expr, Guard, Ints, Loops

WIDTH = 100
Flags = NDArray[np.bool_]
NO_AXIS = Expr()


@dataclass(frozen=True)
class Names:
    """Names of the coordinates of a device, of their sizes, and of the step, from `first` on."""

    axes: tuple[str, ...]
    sizes: tuple[str, ...]
    first: int = 0
    step: str = "step"
    known: tuple[tuple[int, str], ...] = ()  # sizes with their names

    def at(self, t: int) -> "Names":
        """The same names in a known step."""
        return replace(self, step=str(t - self.first))

    def numbers(self, mesh: tuple[int, ...]) -> dict[str, int]:
        """The sizes by their names."""
        return {"RANKS": int(np.prod(mesh)), **dict(zip(self.sizes, mesh, strict=True))}


def count(n: int, names: Names) -> str:
    """A number of ranks or steps, by a size that it is near."""
    for size, name in names.known:
        if size > 3 and n in (size, size - 1):
            return name if n == size else f"{name} - 1"
    return str(n)


def expression(e: Expr, names: Names) -> str:
    """`rank - step + 1`, `(rank + 3) % RANKS`; numbers where the step is a number."""
    if e.table:
        raise PlanError("a list of numbers per coordinate in an expression")
    constant, terms = e.constant, list[tuple[int, str]]()
    if names.step.isdecimal():
        constant += e.step * ((int(names.step) + names.first - e.phase) // e.period)
    elif e.period == 1:
        constant += e.step * (names.first - e.phase)
        terms.append((e.step, names.step))
    else:
        shifted = linear([(1, names.step)], names.first - e.phase)
        terms.append((e.step, f"{f'({shifted})' if ' ' in shifted else shifted} // {e.period}"))
    axes = [(k, name) for k, name in zip(e.axes, names.axes, strict=False)]
    text = linear([*axes, *terms], constant)
    if not e.modulo or text.isdecimal():
        return text
    return f"({text}) % {dict(names.known).get(e.modulo, e.modulo)}"


def linear(terms: Sequence[tuple[int, str]], constant: int) -> str:
    """A sum of multiples of names and a constant, the positive ones first."""
    parts = sorted(((k, n) for k, n in terms if k), key=lambda x: x[0] < 0)
    text = ""
    for k, name in parts:
        factor = name if abs(k) == 1 else f"{abs(k)} * {name}"
        sign = " - " if k < 0 else " + "
        text += f"{sign}{factor}" if text else f"-{factor}" if k < 0 else factor
    if text.startswith("-") and constant > 0:
        return f"{constant} {text.replace('-', '- ', 1)}"
    if not text:
        return str(constant)
    return f"{text} {'+' if constant > 0 else '-'} {abs(constant)}" if constant else text


def comparison(name: str, low: str | None, high: str | None) -> str:
    """low <= name <= high as Python over arrays."""
    if low is not None and low == high:
        return f"{name} == {low}"
    texts = list[str]()
    if low is not None:
        texts.append(f"{name} > {low[:-4]}" if low.endswith(" + 1") else f"{name} >= {low}")
    if high is not None:
        texts.append(f"{name} < {high[:-4]}" if high.endswith(" - 1") else f"{name} <= {high}")
    return both(texts)


def both(texts: Sequence[str]) -> str:
    """All of some conditions."""
    if len(texts) == 1:
        return texts[0]
    return " & ".join(f"({text})" for text in texts)


@dataclass(frozen=True)
class Domain:
    """Steps and all ranks: where a condition is asked; not asked where `known` is False."""

    steps: tuple[int, ...]
    coordinates: Ints
    known: Flags | None = None

    def of(self, guard: Guard) -> Flags:
        """The guard on each step and rank: [steps, ranks]."""
        flags = np.stack([guard.at(t, self.coordinates) for t in self.steps])
        return flags if self.known is None else flags & self.known

    def but(self, known: Flags) -> "Domain":
        """The domain without what `known` leaves out."""
        return replace(self, known=known if self.known is None else self.known & known)

    def cyclic(self, low: Expr, high: Expr) -> bool:
        """True if an interval wraps around somewhere."""
        x = self.coordinates
        return any(bool((low.at(t, x) > high.at(t, x)).any()) for t in self.steps)


def conditions(guard: Guard, names: Names, loops: Loops, on: Domain) -> list[str]:
    """The conditions of a guard that are needed on a domain, each as text."""
    if guard.tabled:
        raise PlanError("a condition that is a list of ranks")
    wanted, bounds = on.of(guard), list(guard.bounds)
    for bound in tuple(bounds):  # what holds anyway is left out
        fewer = [b for b in bounds if b is not bound]
        if np.array_equal(on.of(Guard(tuple(fewer))), wanted):
            bounds = fewer
    return [_bound(bound, names, loops, on) for bound in bounds]


def _bound(
    bound: tuple[int, Expr | None, Expr | None], names: Names, loops: Loops, on: Domain
) -> str:
    axis, low, high = bound
    name = "rank" if axis < 0 else names.axes[axis]
    for ends in ((low, None), (None, high)):
        if np.array_equal(on.of(Guard(((axis, *ends),))), on.of(Guard((bound,)))):
            low, high = ends
    lo, hi = (None if e is None else expression(e, names) for e in (low, high))
    if low and high and on.cyclic(low, high):
        assert lo
        assert hi
        if lo.isdecimal() and hi.isdecimal():
            return f"({name} >= {lo}) | ({name} <= {hi})"
        n = loops.mesh[axis] if axis >= 0 else int(np.prod(loops.mesh))
        return f"({name} - ({lo})) % {n} <= ({hi} - ({lo})) % {n}"
    return comparison(name, lo, hi)


# ---- calls, broken as ruff breaks them


def call(
    indent: int, head: str, arguments: Sequence[str], tail: str = ")", width: int = WIDTH
) -> list[str]:
    """`head` arguments `tail`, in one line if it fits; arguments may be of several lines."""
    margin, single = " " * indent, not any("\n" in a for a in arguments)
    line = f"{margin}{head}{', '.join(arguments)}{tail}"
    if single and len(line) <= width:
        return [line]
    inner = f"{margin}    {', '.join(arguments)}"
    if single and len(inner) <= WIDTH:
        return [margin + head, inner, margin + tail]
    if single and len(arguments) == 1 and " for " in arguments[0]:  # takes no comma behind it
        each, _, source = arguments[0].rpartition(" for ")
        lines = [*statement(indent + 4, "", each), f"{margin}    for {source}"]
        return [margin + head, *lines, margin + tail]
    lines = [f"{margin}    {line}" for a in arguments for line in f"{a},".split("\n")]
    return [margin + head, *lines, margin + tail]


def statement(indent: int, start: str, value: str) -> list[str]:
    """A line that ends in a value, which is a call if it has to be broken."""
    line = f"{' ' * indent}{start}{value}"
    if len(line) <= WIDTH or not value.endswith(")"):
        return [line]
    head, _, rest = value.partition("(")
    arguments, depth = [""], 0
    for c in rest[:-1]:
        depth += (c in "([{") - (c in ")]}")
        if c == "," and depth == 0:
            arguments.append("")
        else:
            arguments[-1] += c
    return call(indent, f"{start}{head}(", [a.strip() for a in arguments])
