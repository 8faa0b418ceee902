"""Messages between two ranks as text: where to, where from, and when."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from codegen.text import Names, affine
from codegen.torch.conditions import Domain, both, bounds, conditions, needed
from codegen.torch.variables import sums
from codegen.torch.walk import Cell, Walk
from planner.errors import PlanError
from planner.loops.form import Expr, Loops, Send, Shift


@dataclass(frozen=True)
class Transfer:
    """A send statement in some steps of a section; sums go to one cell all the while."""

    s: Send
    source: Cell | None
    into: Cell | None
    domain: Domain
    names: Names
    anew: bool = False  # the sums take the place of those that left before

    @property
    def axis(self) -> int:
        """The axis along which it goes."""
        if not isinstance(self.s.hop, Shift):
            raise PlanError("ranks send to others by a table")
        moved = [a for a, e in enumerate(self.s.hop.by) if e != Expr()]
        if len(moved) != 1:
            raise PlanError("a message goes along several axes at once")
        return moved[0]

    @property
    def shift(self) -> Expr:
        """The distance that it goes."""
        assert isinstance(self.s.hop, Shift)
        e = self.s.hop.by[self.axis]
        if e.axes or e.table:
            raise PlanError("how far a message goes depends on the rank")
        return e

    @property
    def guarded(self) -> bool:
        """True if not all ranks send."""
        return not all(c.holds.all() for c in bounds(self.s.when, self.domain, self.names))

    def peers(self, names: Names) -> tuple[str, str]:
        """The texts of the ranks that are sent to and received from."""
        axis = self.axis
        x, n = names.axes[axis], self.domain.loops.mesh[axis]
        there, back = (_moved(x, replace(self.shift, modulo=0), sign, names) for sign in (1, -1))
        size = names.sizes.get(n, str(n))
        return f"({there}) % {size}", f"({back}) % {size}"

    def time(self) -> str:
        """The condition on the step; "" for always, and where the route says it."""
        if self.guarded:
            return ""
        plain = replace(
            self.s.when, guard=replace(self.s.when.guard, bounds=(), spans=(), ranks=())
        )
        said = conditions(plain, self.domain, self.names)
        shape = len(self.domain.steps), len(self.domain.loops.coordinates())
        return both(needed(said, np.ones(shape, bool)))

    def asked(self, to: str, source: str) -> str:
        """The values that say if this rank sends, and if something comes to it."""
        receiver = self.s.when.guard.receiver
        here = self.names.axes[self.axis]
        said = conditions(self.s.when, self.domain, self.names.but(self.axis, "r"))
        shape = len(self.domain.steps), len(self.domain.loops.coordinates())
        asked = both(needed(said, np.ones(shape, bool)))
        return f"({asked} for r in ({to if receiver else here}, {here if receiver else source}))"


def _moved(x: str, by: Expr, sign: int, names: Names) -> str:
    signed_ = replace(by, constant=sign * by.constant, step=sign * by.step)
    if names.at is not None or not by.step:
        return affine([(1, x)], int(signed_.at(names.at or 0, _nowhere())[0]))
    if by.period > 1:
        raise PlanError("how far a message goes changes in rounds")
    constant = signed_.constant + signed_.step * (names.first - by.phase)
    return affine([(1, x), (signed_.step, names.step)], constant)


def _nowhere() -> np.ndarray:
    return np.zeros((1, 1), np.intp)


def transfers(loops: Loops, walked: Walk, domain: Domain, names: Names) -> Iterator[Transfer]:
    """The messages that start in some steps, cut wherever sums begin to go elsewhere."""
    for i, s in enumerate(loops.statements):
        steps = [t for t in domain.steps if s.when.on(t)]
        if not isinstance(s, Send) or not steps:
            continue
        if not sums(s.tensors):
            yield Transfer(s, None, None, domain, names)
            continue
        into = [walked.into[i][t] for t in steps]
        if len(set(into)) > 1:
            raise PlanError("sums are added to one value first and then to another in a loop")
        anew = {(i, t) in walked.anew for t in steps}
        if len(anew) > 1 and walked.accumulates(into[0]) and not walked.relayed(into[0]):
            raise PlanError("sums take the place of others in some steps of a loop")
        yield Transfer(s, walked.source[i], into[0], domain, names, anew.pop())
