"""Gathers and all-to-alls along an axis of the mesh, and the way back of sums over them."""

from dataclasses import dataclass, field

from planner.errors import PlanError
from planner.loops.form import AllToAll, Gather, Loops, Return


@dataclass
class Exchanges:
    """The functions for the exchanges of a program."""

    texts: dict[str, list[str]] = field(default_factory=dict)

    def text(self, s: Gather | AllToAll, source: str, single: bool) -> str:
        raise PlanError("an exchange")

    def back(self, s: Return, source: str, side: str) -> str:
        raise PlanError("an exchange")
