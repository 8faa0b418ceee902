"""fit_buffers(plan)   declares the slots that ranks need, where a pass made them need more."""

from dataclasses import replace

from ringloom.planner.analysis.liveness import slots
from ringloom.planner.ir import Plan


def fit_buffers(plan: Plan) -> Plan:
    """Returns the plan with buffers as large as they were, or as its steps need."""
    needs = (
        (tensor, max(declared, int(slots(plan, tensor).max(initial=0))))
        for tensor, declared in plan.buffers
    )
    return replace(plan, buffers=tuple(needs))
