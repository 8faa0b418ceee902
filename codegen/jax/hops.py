"""Messages from device to device: one ppermute each."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TypeGuard

import numpy as np

from codegen.lowered.conditions import SIZES, Domain, both, spanned
from codegen.lowered.walk import Walk
from codegen.text import Names, affine, entered, expression, numbered
from planner.columns import distinct
from planner.errors import PlanError
from planner.loops.expand import pairs as planned
from planner.loops.form import Expr, Guard, Ints, Loops, Root, Send, Shift, When

Steps = tuple[int, ...]


def sends_inputs(s: object) -> TypeGuard[Send]:
    """True for messages of copies."""
    return isinstance(s, Send) and not s.sums


def everybody(loops: Loops, s: Send) -> Ints:
    """The ranks that run a send whose way is the same in all steps: an interval, or all of them.

    More may be sent then than planned: inputs that nobody reads, or sums that are zero.
    """
    steps = s.when.steps if s.when.guard != Guard() else [s.when.first]
    ranks = distinct(np.concatenate([planned(loops, s, t)[0] for t in steps]))
    whole = len(ranks) == ranks[-1] - ranks[0] + 1
    return ranks if whole else loops.coordinates()[:, -1]


def stepwise(loops: Loops, walked: Walk) -> frozenset[Send]:
    """The messages whose pairs change with the step: their way, or their ranks.

    Ranks do where they are data, and where ranks that are not to send have sums.
    """
    sends = (s for s in loops.statements if isinstance(s, Send) and isinstance(s.hop, Shift))
    return frozenset(
        s
        for s in sends
        if s.when.guard.spans or any(e.step for e in _far(s)) or _others_hold(loops, s, walked)
    )


def _others_hold(loops: Loops, s: Send, walked: Walk) -> bool:
    """True if ranks that would run a send beside those of the plan have sums."""
    if not s.sums or s.when.guard == Guard():
        return False
    running, holders = everybody(loops, s), walked.holders.get(walked.source[s], {})
    more = {t: np.setdiff1d(running, planned(loops, s, t)[0]) for t in s.when.steps}
    return any(np.isin(holders.get(t, ranks[:0]), ranks).any() for t, ranks in more.items())


@dataclass
class Hops:
    """The pairs of ranks that messages go between: constants, or what follows from the step."""

    loops: Loops
    stepwise: frozenset[Send] = frozenset()
    constants: dict[str, str] = field(default_factory=dict)

    def call(self, s: Send, value: str, names: Names) -> str:
        """A call that sends a value and gives what arrives."""
        if isinstance(s.hop, Root):
            return self._rooted(s, s.hop, value, names)
        pairs, partly = self._stepwise(s, names) if s in self.stepwise else self._steady(s, names)
        function = "permute_outputs" if s.tensors == ("OUT",) and partly else "lax.ppermute"
        return f"{function}({value}, axis, {pairs})"

    def _rooted(self, s: Send, hop: Root, value: str, names: Names) -> str:
        """A broadcast, or sums that go to one rank: `lax.psum`, as loops compute which one."""
        if s.when.guard != Guard() or s.tensors == ("OUT",) or len(self.loops.mesh) > 1:
            raise PlanError("a broadcast reaches some ranks, or carries outputs to merge")
        root = expression(hop.root, names)
        if s.sums:
            return f"on_root(lax.psum({value}, axis), {root}, axis)"
        return f"lax.psum(on_root({value}, {root}, axis), axis)"

    def _steady(self, s: Send, names: Names) -> tuple[str, bool]:
        """The name of pairs that are the same in every step; True: not of all ranks."""
        sending, text = everybody(self.loops, s), _way(s)
        low, high = int(sending[0]), int(sending[-1])
        pairs = f"[(r, {text}) for r in {_span(str(low), names.count(high + 1))}]"
        once = replace(s, when=When(s.when.first, s.when.first))
        src, dst = planned(self.loops, once, s.when.first)
        on = (low <= src) & (src <= high)
        self._check(pairs, names, 0, src[on], dst[on])
        title = {"(r + 1) % RANKS": "NEXT", "(r - 1) % RANKS": "PREVIOUS"}.get(text, "PAIRS")
        partly = len(sending) < len(self.loops.coordinates())
        return entered(self.constants, numbered(title), pairs), partly

    def _stepwise(self, s: Send, names: Names) -> tuple[str, bool]:
        """The pairs of a step, told by those who send; True: not of all ranks."""
        guard, way = s.when.guard, _far(s)
        if len(way) > 1 or any(way[0].axes) or len(guard.bounds) > 1:
            raise PlanError("who sends to whom changes with the step, for some ranks only")
        steps = s.when.steps if names.at is None else [names.at]
        pairs = f"hop({self._senders(s, way[0], steps, names)}, {expression(way[0], names)})"
        for t in steps:
            self._check(pairs, names, t - names.first, *planned(self.loops, s, t))
        return pairs, guard != Guard()

    def _senders(self, s: Send, far: Expr, steps: Sequence[int], names: Names) -> str:
        """The ranks that send in a step, as text."""
        guard = s.when.guard
        if guard.ranks or (guard.spans and names.at is not None):
            return names.listed(planned(self.loops, s, steps[0])[0].tolist())
        if guard.spans:
            return self._spanned(s, far, steps, names)
        return self._between(s, far, names)

    def _spanned(self, s: Send, far: Expr, steps: Sequence[int], names: Names) -> str:
        """The senders, if the first and the last step of each rank are data."""
        others = names.but(0, "r")
        on = Domain(self.loops, steps, others)
        asked = both([*spanned(s.when.guard, on, on.everywhere)])
        back = replace(far, constant=-far.constant, step=-far.step, axes=(1,))
        sender = expression(back, others) if s.when.guard.receiver else "r"
        return f"[{sender} for r in range(RANKS) if {asked}]"

    def _between(self, s: Send, far: Expr, names: Names) -> str:
        """The senders, if they are an interval."""
        guard, n = s.when.guard, len(self.loops.coordinates())
        low, high = guard.bounds[0][1:] if guard.bounds else (None, None)
        ends = [low or Expr(), replace(high, constant=high.constant + 1) if high else Expr(n)]
        if guard.receiver:
            ends = [_less(end, far) for end in ends]
            lowest = min(ends[0].constant + ends[0].step * t for t in s.when.steps)
            ends = [replace(end, constant=end.constant - lowest // n * n) for end in ends]
        texts = [expression(end, names) for end in ends]
        return _span(*(names.count(int(x)) if x.isdecimal() else x for x in texts))

    def _check(self, pairs: str, names: Names, step: int, src: Ints, dst: Ints) -> None:
        """Raise PlanError unless the text of pairs means these."""
        sizes = dict(zip(SIZES[len(self.loops.mesh)], self.loops.mesh, strict=True))
        n = len(self.loops.coordinates())
        known = {
            "range": range,
            "RANKS": n,
            **sizes,
            **names.data,
            names.step: step,
            "hop": lambda ranks, far: [(r % n, (r + far) % n) for r in ranks],
        }
        if sorted(eval(pairs, known)) != sorted(zip(src.tolist(), dst.tolist(), strict=True)):
            raise PlanError("who sends to whom follows no formula")


def _span(low: str, end: str) -> str:
    """The ranks from one on, up to another one, which is none of them."""
    return f"range({end})" if low == "0" else f"range({low}, {end})"


def _less(number: Expr, other: Expr) -> Expr:
    """A number less another one, both of which may change with every step."""
    constants = (x.constant - x.step * x.phase for x in (number, other))
    return Expr(next(constants) - next(constants), number.step - other.step)


def _far(s: Send) -> tuple[Expr, ...]:
    """The distance that a message goes along each axis."""
    if not isinstance(s.hop, Shift):
        raise PlanError("who sends to whom is a list, not a distance")
    return s.hop.by


def _way(s: Send) -> str:
    """The receiver of rank r as text, the same in every step."""
    far = [e.constant for e in _far(s)]
    if len(far) == 1:
        return f"({affine([(1, 'r')], far[0])}) % RANKS"
    group, member = far
    if member == 0:
        groups = {1: "+ INNER", -1: "- INNER"}.get(group, f"+ ({group}) * INNER")
        return f"(r {groups}) % RANKS"
    text = affine([(1, "r // INNER")], group)
    text = f"({text}) % OUTER" if group else text
    return f"{text} * INNER + ({affine([(1, 'r')], member)}) % INNER"
