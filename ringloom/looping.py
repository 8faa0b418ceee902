"""looped(plan)   a plan's loops as pseudo-code, or the reason that it has none and its tables."""

from typing import Any

from planner.errors import PlanError
from planner.ir import Plan
from planner.loops import recover, show
from ringloom.views.units import SHOWN, both_ends


def looped(plan: Plan) -> tuple[str, dict[str, Any]]:
    """Returns the loops of a plan, recovered and checked, as text and as plain values for JSON.

    Of an irregular plan the text is the reason and its tables in words.
    """
    try:
        loops = recover(plan)
    except PlanError as error:
        reason = str(error).removeprefix("irregular: ")
        text = "\n".join([f"irregular: {reason}", *tabled(plan)])
        return text, {"loops": None, "statements": None, "irregular": reason}
    text = show(loops)
    return text, {"loops": text, "statements": len(loops.statements), "irregular": None}


def tabled(plan: Plan) -> list[str]:
    """Describe the tables of a plan: a line per step, of many steps the first and last ones."""
    lines = []
    for number, step in enumerate(plan.steps):
        messages, attends = (sum(map(len, nodes)) for nodes in (step.moves, step.attends))
        tensors = sorted({t for move in step.moves for t in move.tensors})
        what = f"{messages} messages of {', '.join(tensors)}" if messages else "no message"
        lines.append(f"    step {number}: {attends} rectangles, {what}")
    return both_ends(lines, f"    ... {len(lines) - SHOWN} more steps ...")
