"""Words   prints numbers and conditions of the IR as Python, the same for all targets.

The coordinates of a rank are `rank` on one axis, `outer` and `inner` on two; `step` counts the
steps of a loop. Numbers without a formula are printed as named tuples of data.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import assert_never

import numpy as np

from ringloom.codegen.conditions import RANK, Bound, Condition, Every, Listed, Span, Steps, Test
from ringloom.planner.loops.form import Expr, Ints, Loops

AXES = {
    1: ("rank",),
    2: ("outer", "inner"),
    3: ("outer", "middle", "inner"),
    4: ("first", "second", "third", "fourth"),
}
SIZES = {n: tuple(name.upper() for name in names) for n, names in AXES.items()} | {1: ("RANKS",)}
Data = dict[str, tuple[int, ...]]  # name -> values


@dataclass(frozen=True)
class Words:
    """The names of numbers in one step, or in all steps of a loop.

    `axes` are the names of a rank's coordinates, `rank` the name of its number.
    """

    mesh: tuple[int, ...]
    steps: range
    loop: bool
    axes: tuple[str, ...]
    rank: str = "rank"
    data: Data = field(default_factory=dict)
    used: set[str] = field(default_factory=set)  # names printed so far

    @property
    def sizes(self) -> tuple[str, ...]:
        """The names of the sizes of the axes."""
        return SIZES[len(self.mesh)]

    @property
    def step(self) -> str:
        """The name of the step in a loop, otherwise its number."""
        return "step" if self.loop else str(self.steps.start)

    def for_rank(self, axes: Sequence[str], rank: str) -> "Words":
        """Returns the words for another rank."""
        return replace(self, axes=tuple(axes), rank=rank)

    # ---- numbers

    def number(self, e: Expr) -> str:
        """rank - step + 1, (outer + 3) % 4, TABLE_1[rank]"""
        constant, clock = e.constant, "step"
        if not self.loop:
            constant += e.step * ((self.steps.start - e.phase) // e.period)
        elif e.period > 1:
            clock = f"({sum_of([(1, 'step'), (-e.phase, '')])}) // {e.period}"
            clock = f"({clock})"
        elif e.phase:
            constant -= e.step * e.phase
        terms = [*zip(e.axes, self.axes, strict=False), (e.step * self.loop, clock), (constant, "")]
        self.used.update(name for factor, name in terms if factor)
        self.used.update(["step"] if self.loop and e.step else [])
        text = sum_of(terms)
        if e.modulo:
            text = f"({text}) % {e.modulo}"
        return self.index_data(self.name_data("TABLE", e.table), text) if e.table else text

    def index_data(self, name: str, index: str) -> str:
        """Prints an element of named data."""
        return f"{name}[{index}]"

    def name_data(self, title: str, values: tuple[int, ...]) -> str:
        """Returns the name of data; equal data share a name."""
        known = (name for name, data in self.data.items() if data == values)
        name = next(known, f"{title}_{len(self.data) + 1}")
        self.data[name] = values
        return name

    # ---- conditions

    def condition(self, tests: Condition) -> str:
        """Prints the conjunction of tests; "" for none."""
        return self.join_tests([self.test(test) for test in tests])

    def join_tests(self, tests: Sequence[str]) -> str:
        """Joins printed tests by `and`."""
        return " and ".join(tests)

    def chain(self, low: str, x: str, high: str) -> str:
        """low <= x <= high"""
        return f"{low} <= {x} <= {high}"

    def cyclic(self, low: str, x: str, high: str, ordered: bool | None) -> str:
        """Prints low <= x <= high, or the range that wraps around the axis if low > high.

        `ordered`: True if low <= high, None if unknown.
        """
        if ordered is None:
            return f"({low} <= {x}) + ({x} <= {high}) > ({low} <= {high})"
        return self.chain(low, x, high) if ordered else f"({x} >= {low} or {x} <= {high})"

    def contains(self, x: str, name: str) -> str:
        """Prints the test that x is in named data."""
        return f"{x} in {name}"

    def test(self, test: Test) -> str:
        """Prints a test, in parentheses if the context requires them."""
        self.used.update([self.rank] if isinstance(test, Span | Listed) else [])
        self.used.update(["step"] if isinstance(test, Steps | Every | Span) else [])
        match test:
            case Steps():
                return self.between("step", test.first, test.last)
            case Every(first, every, width):
                return f"({sum_of([(1, self.step), (-first, '')])}) % {every} < {width}"
            case Bound():
                return self.bound(test)
            case Span(first, last):
                begin, end = self.name_data("FIRST", first), self.name_data("LAST", last)
                first_step, last_step = (self.index_data(x, self.rank) for x in (begin, end))
                return self.chain(first_step, self.step, last_step)
            case Listed(ranks):
                return self.contains(self.rank, self.name_data("RANKS_OF", ranks))
            case _:
                assert_never(test)

    def between(self, x: str, first: int | None, last: int | None) -> str:
        """Prints first <= x <= last, without bounds that the steps of the loop imply."""
        low = first if first is None or first > self.steps.start else None
        high = last if last is None or last < self.steps.stop - 1 else None
        if low is None and high is None:
            return "True"
        if low is None:
            return f"{x} == {high}" if high == self.steps.start else f"{x} <= {high}"
        if high is None:
            return f"{x} == {low}" if low == self.steps.stop - 1 else f"{x} >= {low}"
        return f"{x} == {low}" if low == high else self.chain(str(low), x, str(high))

    def bound(self, test: Bound) -> str:
        """Prints low <= x <= high, or the range that wraps around the axis if low > high."""
        x = self.rank if test.axis == RANK else self.axes[test.axis]
        self.used.add(x)
        low, high = test.low, test.high
        if low is None or high is None:
            lower = [f"{x} >= {self.number(low)}"] if low else []
            upper = [f"{x} <= {self.number(high)}"] if high else []
            return (lower or upper or ["True"])[0]
        if low == high:
            return f"{x} == {self.number(low)}"
        first, last = self.number(low), self.number(high)
        flags = {bool(flag) for t in self.steps for flag in self.is_rising(low, high, t)}
        return self.cyclic(first, x, last, flags.pop() if len(flags) == 1 else None)

    def is_rising(self, low: Expr, high: Expr, t: int) -> Ints:
        """Marks the ranks on which low <= high in a step: [ranks]."""
        coordinates = Loops(self.mesh, 0, ()).coordinates()
        return np.asarray(low.at(t, coordinates) <= high.at(t, coordinates), np.intp)


def sum_of(terms: Sequence[tuple[int, str]]) -> str:
    """Prints a sum of multiples of names ("" for the constant), positive terms first."""
    texts = list[tuple[int, str]]()
    for factor, name in terms:
        size = abs(factor)
        if factor:
            texts.append((factor, f"{size} * {name}" if name and size > 1 else name or str(size)))
    texts.sort(key=lambda term: term[0] < 0)
    if not texts:
        return "0"
    (sign, head), *others = texts
    tail = (f" {'-' if factor < 0 else '+'} {text}" for factor, text in others)
    return ("-" if sign < 0 else "") + head + "".join(tail)
