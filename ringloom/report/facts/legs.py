"""Legs: the passes of a schedule one after the other, as pictures show them."""

from dataclasses import dataclass

from planner.ir import Plan
from ringloom.comparison import Case
from simulator.prediction import Prediction


@dataclass(frozen=True, eq=False)
class Leg:
    """One pass of one schedule; its timeline begins `offset` seconds after the schedule does."""

    title: str
    plan: Plan
    prediction: Prediction
    offset: float


def legs(case: Case) -> tuple[Leg, ...]:
    """The passes of a case, one after the other."""
    parts, offset = list[Leg](), 0.0
    for plan, prediction in case.passes:
        title = case.row.schedule + (f" {plan.pass_}" if len(case.passes) > 1 else "")
        parts.append(Leg(title, plan, prediction, offset))
        offset += prediction.makespan
    return tuple(parts)
