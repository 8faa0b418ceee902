"""Messages from device to device: one ppermute each, as functions that the schedule calls."""

import re
from dataclasses import dataclass, field

import numpy as np

from codegen.jax.ways import everybody, is_stepwise
from codegen.lowered.conditions import SIZES, Domain, both, bounds
from codegen.text import Names, affine, entered, expression, numbered
from planner.errors import PlanError
from planner.loops.expand import ends
from planner.loops.expand import pairs as planned
from planner.loops.form import Loops, Root, Send, Shift

Steps = tuple[int, ...]
NEXT = ("r + 1", "(r + 1) % RANKS")
TO = re.compile(r"\bto\b")  # the receiver, in a condition


@dataclass(frozen=True)
class Hop:
    """A function of messages: its name; `stepwise`: it gives the pairs of devices of a step."""

    name: str
    stepwise: bool
    outputs: bool = False  # where nothing arrives there is no output: log-sum-exp -inf
    by: int = 1  # ranks to go on, where every rank sends

    def of(self, value: str, step: str, steps: Steps | None, names: Names) -> str:
        """A call of it; `steps`: those of a loop of JAX, whose steps are no numbers of Python."""
        if not self.stepwise:
            return f"{self.name}({value}, axis{f', {self.by}' * (self.by != 1)})"
        if steps is None or step.isdecimal():
            return f"{self.function}({value}, axis, {self.name}({step}))"
        first, end = (t - names.first for t in (steps[0], steps[-1] + 1))
        ways = f"[{self.name}(s) for s in range({first}, {names.count(end)})]"
        start = f"step - {first}" if first else "step"
        return f"in_step({start}, {ways}, {value}, axis)"

    @property
    def function(self) -> str:
        """Names the function that sends along pairs of devices."""
        return "permute_outputs" if self.outputs else "lax.ppermute"


@dataclass
class Hops:
    """The hop functions of a program, each once."""

    loops: Loops
    texts: dict[str, list[str]] = field(default_factory=dict)
    rounds: set[int] = field(default_factory=set)  # by how many ranks all of them send on

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes of the mesh by their names."""
        named = zip(SIZES[len(self.loops.mesh)], self.loops.mesh, strict=True)
        return {"RANKS": len(self.loops.coordinates()), **dict(named)}

    def add(self, title: str, s: Send, names: Names) -> Hop:
        """The function for a send; `title` is its name unless that is taken.

        Where the way is the same in all steps there is one list of pairs for all of them.
        """
        stepwise = is_stepwise(s)
        if not stepwise and (by := self._round(s)):
            self.rounds.add(by)
            return Hop("pass_on", False, by=by)
        if len(self.loops.mesh) == 1 and not stepwise:
            title = f"{title}_from_some"
        body = self._stepwise(s, names) if stepwise else self._steady(s, names)
        lines = ["(step):" if stepwise else "(x, axis):", *body]
        return Hop(entered(self.texts, numbered(title), lines), stepwise, s.tensors == ("OUT",))

    def rooted(self, s: Send, value: str, names: Names) -> str:
        """A broadcast, or sums that go to one rank: `lax.psum`, as loops compute which one."""
        assert isinstance(s.hop, Root)
        if len(self.loops.mesh) > 1:
            raise PlanError("a broadcast along one of several axes")
        root = expression(s.hop.root, names)
        if s.sums:
            return f"on_root(lax.psum({value}, axis), {root}, axis)"
        return f"lax.psum(on_root({value}, {root}, axis), axis)"

    @property
    def functions(self) -> dict[str, list[str]]:
        """The functions, their arguments first."""
        return ({"pass_on": _onward(self.rounds != {1})} if self.rounds else {}) | self.texts

    def _round(self, s: Send) -> int:
        """Returns the distance that every rank sends along the only axis, 0 where they do not."""
        ranks = self.loops.coordinates()[:, -1]
        if not isinstance(s.hop, Shift) or len(self.loops.mesh) > 1:
            return 0
        if len(everybody(self.loops, s)) < len(ranks):
            return 0
        by = s.hop.by[0].constant
        same = np.array_equal(ends(self.loops, s, s.when.first), (ranks + by) % len(ranks))
        return by if same else 0

    def _steady(self, s: Send, names: Names) -> list[str]:
        """The same pairs in every step, those of an interval of ranks."""
        way, ranks = _way(s, self.loops, names), self.loops.coordinates()[:, -1]
        sending = everybody(self.loops, s)
        low, high = int(sending[0]), int(sending[-1])
        to = ends(self.loops, s, s.when.first)
        if low > 0 or high < len(ranks) - 1:
            by = to[low : high + 1] - ranks[low : high + 1]
            near = (by == by[0]).all() and abs(int(by[0])) <= len(ranks) // 2
            way = affine([(1, "r")], int(by[0])) if near else way
        start = f"{low}, " if low else ""
        pairs = f"[(r, {way}) for r in range({start}{names.count(high + 1)})]"
        made = eval(pairs, {"range": range, **self.sizes})
        if made != [(r, int(to[r])) for r in range(low, high + 1)]:
            raise PlanError("pairs of ranks that are not the plan's")
        partly = len(made) < len(ranks)
        said = [f'    """{_said(way, partly)}"""']
        if s.tensors == ("OUT",) and partly:
            return [*said, f"    return permute_outputs(x, axis, {pairs})"]
        return [*said, f"    return lax.ppermute(x, axis, {pairs})"]

    def _stepwise(self, s: Send, names: Names) -> list[str]:
        """The pairs of a step."""
        where, way = _guard(s, self.loops, names), _way(s, self.loops, names)
        condition = f" if {re.sub(TO, way, where)}" if where else ""
        pairs = f"[(r, {way}) for r in range(RANKS){condition}]"
        for t in s.when.steps:
            known = {"range": range, "step": t - names.first, **self.sizes}
            src, dst = planned(self.loops, s, t)
            if eval(pairs, known) != [*zip(src.tolist(), dst.tolist(), strict=True)]:
                raise PlanError("pairs of ranks that are not the plan's")
        said = f'    """{_said(way, bool(where))}"""'
        return [said, f"    return {pairs}"]


def _onward(several: bool) -> list[str]:
    """The function by which every rank sends to one further on; `several` distances."""
    by, said = ("by", "the one so many places on") if several else ("1", "the next")
    pairs = f"[(r, (r + {by}) % RANKS) for r in range(RANKS)]"
    return [
        f"(x, axis{', by=1' * several}):",
        f'    """From every device to {said}."""',
        f"    return lax.ppermute(x, axis, {pairs})",
    ]


def _said(way: str, partly: bool) -> str:
    """A sentence about a hop."""
    devices = "some devices" if partly else "every device"
    return f"From {devices} {'to the next' if way in NEXT else f'r to {way}'}."


def _way(s: Send, loops: Loops, names: Names) -> str:
    """The receiver of rank r as text."""
    if not isinstance(s.hop, Shift):
        raise PlanError("messages along a list of ranks")
    if any(e.modulo or any(e.axes) or e.period > 1 for e in s.hop.by) or len(s.hop.by) > 2:
        raise PlanError("messages whose way depends on the rank")
    far = [(e.step, e.constant + e.step * names.first) for e in s.hop.by]
    if len(far) == 1:
        return f"({affine([(1, 'r'), (far[0][0], names.clock)], far[0][1])}) % RANKS"
    (slope, constant), inner = far
    if inner == (0, 0):
        text = affine([(slope, names.clock)], constant)
        groups = {"1": "+ INNER", "-1": "- INNER"}.get(text, f"+ ({text}) * INNER")
        return f"(r {groups}) % RANKS"
    group = affine([(1, "r // INNER"), (slope, names.clock)], constant)
    group = group if (slope, constant) == (0, 0) else f"({group}) % OUTER"
    member = affine([(1, "r"), (inner[0], names.clock)], inner[1])
    return f"{group} * INNER + ({member}) % INNER"


def _guard(s: Send, loops: Loops, names: Names) -> str:
    """Plain Python for a guard in a step, of r or of its receiver `to`."""
    guard, on = s.when.guard, s.when.steps
    if len(loops.mesh) > 1 and guard.bounds:
        raise PlanError("messages of some ranks only, along an axis")
    here = names.but(0, "to" if guard.receiver else "r")
    return both([*bounds(guard, Domain(loops, on), here)])
