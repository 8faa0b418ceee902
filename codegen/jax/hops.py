"""Messages from device to device: one ppermute each, as functions that the schedule calls."""

import re
from dataclasses import dataclass, field, replace

import numpy as np

from codegen.lowered.conditions import SIZES, Domain, both, bounds
from codegen.text import Names, affine, entered, expression, numbered
from planner.columns import distinct
from planner.errors import PlanError
from planner.loops.expand import pairs as planned
from planner.loops.form import Guard, Ints, Loops, Root, Send, Shift, When

TITLES = {  # of messages whose way changes with the step: side, if they are sums
    ("q", False): "lend_queries",
    ("kv", False): "lend_keys",
    ("q", True): "homeward",
    ("kv", True): "homeward_keys",
}
Steps = tuple[int, ...]
TO = re.compile(r"\bto\b")  # the receiver, in a condition


def is_stepwise(s: object) -> bool:
    """True if the way of a message changes with the step."""
    return isinstance(s, Send) and isinstance(s.hop, Shift) and any(e.step for e in s.hop.by)


def sends_inputs(s: object) -> bool:
    """True for messages of copies."""
    return isinstance(s, Send) and not s.sums


def everybody(loops: Loops, s: Send) -> Ints:
    """The ranks that run a send whose way is the same in all steps: an interval, or all of them.

    More may be sent then than planned: inputs that nobody reads, or sums that are zero.
    """
    ranks = distinct(np.concatenate([planned(loops, s, t)[0] for t in s.when.steps]))
    whole = len(ranks) == ranks[-1] - ranks[0] + 1
    return ranks if whole else loops.coordinates()[:, -1]


@dataclass
class Hops:
    """The pairs of ranks that messages go between: constants, or functions of the step."""

    loops: Loops
    constants: dict[str, str] = field(default_factory=dict)
    functions: dict[str, list[str]] = field(default_factory=dict)

    def call(self, s: Send, value: str, names: Names) -> str:
        """A call that sends a value and gives what arrives."""
        if isinstance(s.hop, Root):
            return self._rooted(s, s.hop, value, names)
        stepwise, every = is_stepwise(s), replace(names, at=None)
        name, partly = self._stepwise(s, every) if stepwise else self._steady(s, every)
        function = "permute_outputs" if s.tensors == ("OUT",) and partly else "lax.ppermute"
        return f"{function}({value}, axis, {name}{f'({names.clock})' * stepwise})"

    def _rooted(self, s: Send, hop: Root, value: str, names: Names) -> str:
        """A broadcast, or sums that go to one rank: `lax.psum`, as loops compute which one."""
        if s.when.guard != Guard() or s.tensors == ("OUT",) or len(self.loops.mesh) > 1:
            raise PlanError("a broadcast among some ranks, or of outputs that are merged")
        root = expression(hop.root, names)
        if s.sums:
            return f"on_root(lax.psum({value}, axis), {root}, axis)"
        return f"lax.psum(on_root({value}, {root}, axis), axis)"

    def _steady(self, s: Send, names: Names) -> tuple[str, bool]:
        """The name of pairs that are the same in every step; True: not of all ranks."""
        way, sending = _way(s, self.loops, names), everybody(self.loops, s)
        low, high = int(sending[0]), int(sending[-1])
        pairs = f"[(r, {way}) for r in range({f'{low}, ' if low else ''}{names.count(high + 1)})]"
        src, dst = planned(
            self.loops, replace(s, when=When(s.when.first, s.when.first)), s.when.first
        )
        on = (low <= src) & (src <= high)
        self._check(pairs, {}, src[on], dst[on])
        title = {"(r + 1) % RANKS": "NEXT", "(r - 1) % RANKS": "PREVIOUS"}.get(way, "PAIRS")
        partly = len(sending) < len(self.loops.coordinates())
        return entered(self.constants, numbered(title), pairs), partly

    def _stepwise(self, s: Send, names: Names) -> tuple[str, bool]:
        """The function that gives the pairs of a step; True: not of all ranks."""
        where, way = _guard(s, self.loops, names), _way(s, self.loops, names)
        condition = f" if {re.sub(TO, way, where)}" if where else ""
        pairs = f"[(r, {way}) for r in range(RANKS){condition}]"
        for t in s.when.steps:
            self._check(pairs, {"step": t - names.first}, *planned(self.loops, s, t))
        who = "some devices" if where else "every device"
        lines = ["(step):", f'    """From {who} r to {way}."""', f"    return {pairs}"]
        title = TITLES[s.side, s.sums]
        return entered(self.functions, numbered(title), lines), bool(where)

    def _check(self, pairs: str, step: dict[str, int], src: Ints, dst: Ints) -> None:
        """Raise PlanError unless the text of pairs means these."""
        sizes = dict(zip(SIZES[len(self.loops.mesh)], self.loops.mesh, strict=True))
        known = {"range": range, "RANKS": len(self.loops.coordinates()), **sizes, **step}
        if eval(pairs, known) != [*zip(src.tolist(), dst.tolist(), strict=True)]:
            raise PlanError("pairs of ranks that are not the plan's")


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
