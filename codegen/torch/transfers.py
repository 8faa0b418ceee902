"""Messages between two ranks as text: where to, where from, and when."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from codegen.lowered.conditions import SIZES, Domain, both, conditions, needed, times
from codegen.lowered.walk import Cell, Walk
from codegen.text import expression
from planner.errors import PlanError
from planner.loops.form import Expr, Root, Send, Shift


@dataclass(frozen=True)
class Transfer:
    """A send statement in some steps of a section; sums go to one cell all the while."""

    s: Send
    source: Cell | None
    into: Cell | None
    domain: Domain

    @property
    def axes(self) -> list[int]:
        """The axes along which it goes."""
        if self.root is not None:
            return [self.root[0]]
        if not isinstance(self.s.hop, Shift):
            raise PlanError("who sends to whom is a list, not a distance")
        return [a for a, e in enumerate(self.s.hop.by) if e != Expr()]

    @property
    def root(self) -> tuple[int, str] | None:
        """The axis of a broadcast or a reduction, and its root as text."""
        if not isinstance(self.s.hop, Root):
            return None
        if self.guarded:
            raise PlanError("ranks are left out of a broadcast or a reduction")
        return self.s.hop.axis, expression(self.s.hop.root, self.domain.names)

    @property
    def guarded(self) -> bool:
        """True if not all ranks send."""
        where, when = self.domain.loops.coordinates(), self.s.when
        return not all(when.guard.at(t, where).all() for t in self.domain.steps if when.on(t))

    def peers(self) -> tuple[str, str]:
        """The texts of the ranks that are sent to and received from, in the group of the axes."""
        to, source = ([self._along(axis, sign) for axis in self.axes] for sign in (1, -1))
        if len(self.axes) == 1:
            return to[0], source[0]
        size = SIZES[len(self.domain.loops.mesh)][-1]
        return f"{to[0]} * {size} + {to[1]}", f"{source[0]} * {size} + {source[1]}"

    def _along(self, axis: int, sign: int) -> str:
        """The coordinate of the receiver along an axis, or of the sender."""
        assert isinstance(self.s.hop, Shift)
        names = self.domain.names
        by, size = self.s.hop.by[axis], SIZES[len(names.axes)][axis]
        if by.axes or by.table:
            raise PlanError("how far a message goes depends on the rank")
        if by.step and by.period > 1 and names.at is None:
            raise PlanError("how far messages go changes with the step, and starts over")
        here = tuple(int(a == axis) for a in range(len(names.axes)))
        to = replace(by, constant=sign * by.constant, step=sign * by.step, axes=here, modulo=0)
        return f"({expression(to, names)}) % {size}"

    def time(self) -> str:
        """The condition on the step; "" for always, and where the route says it."""
        if self.guarded:
            return ""
        return both(times([t for t in self.domain.steps if self.s.when.on(t)], self.domain))

    def asked(self, to: str, source: str) -> str:
        """A list that says if this rank sends, and if something comes to it."""
        if len(self.axes) > 1:
            raise PlanError("messages of some ranks go along several axes of a mesh at once")
        (axis,), receiver = self.axes, self.s.when.guard.receiver
        here, others = self.domain.names.axes[axis], self.domain.names.but(axis, "r")
        said = conditions(self.s.when, replace(self.domain, names=others))
        asked = both(needed(said, self.domain.everywhere))
        return f"[{asked} for r in ({to if receiver else here}, {here if receiver else source})]"


def transfers(walked: Walk, domain: Domain) -> Iterator[Transfer]:
    """The messages that start in some steps, cut wherever sums begin to go elsewhere."""
    for s in domain.loops.statements:
        steps = [t for t in domain.steps if s.when.on(t)]
        if not isinstance(s, Send) or not steps:
            continue
        if not s.sums:
            yield Transfer(s, None, None, domain)
            continue
        if s.parts[0].pieces or s.parts[0].heads:
            raise PlanError("partial results travel in parts")
        yield Transfer(s, walked.source[s], walked.into[s][steps[0]], domain)
