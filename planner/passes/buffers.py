"""fit_buffers(plan)   raises declared buffers to what the steps need after a pass."""

from dataclasses import replace

from ringloom.planner.analysis.liveness import slots
from ringloom.planner.ir import Plan


def fit_buffers(plan: Plan) -> Plan:
    """Returns the plan with each declared buffer at least as large as its steps need."""
    needs = (
        (tensor, max(declared, int(slots(plan, tensor).max(initial=0))))
        for tensor, declared in plan.buffers
    )
    return replace(plan, buffers=tuple(needs))
