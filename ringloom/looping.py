"""looped(plan)   a plan's loops as pseudo-code, or the reason that it has none and its tables."""

from dataclasses import dataclass
from typing import Any

from planner.errors import PlanError
from planner.ir import Plan
from planner.loops import recover, show
from ringloom.views.units import SHOWN, both_ends


@dataclass(frozen=True)
class Looped:
    """The pseudo-code of a regular plan; of an irregular one the reason and its tables in words."""

    text: str
    statements: int | None
    reason: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        loops = None if self.reason else self.text
        return {"loops": loops, "statements": self.statements, "irregular": self.reason or None}


def looped(plan: Plan) -> Looped:
    """The loops of a plan, recovered and checked."""
    try:
        loops = recover(plan)
    except PlanError as error:
        reason = str(error).removeprefix("irregular: ")
        return Looped("\n".join([f"irregular: {reason}", *tabled(plan)]), None, reason)
    return Looped(show(loops), len(loops.statements))


def tabled(plan: Plan) -> list[str]:
    """Describe the tables of a plan: a line per step, of many steps the first and last ones."""
    lines = []
    for number, step in enumerate(plan.steps):
        messages, attends = (sum(map(len, nodes)) for nodes in (step.moves, step.attends))
        tensors = sorted({t for move in step.moves for t in move.tensors})
        what = f"{messages} messages of {', '.join(tensors)}" if messages else "no message"
        lines.append(f"    step {number}: {attends} rectangles, {what}")
    return both_ends(lines, f"    ... {len(lines) - SHOWN} more steps ...")
