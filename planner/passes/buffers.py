"""fit_buffers(plan)   increases declared buffers to the slots that the steps need."""

from dataclasses import replace

from ringloom.planner.analysis.liveness import slots
from ringloom.planner.ir import Plan


def fit_buffers(plan: Plan) -> Plan:
    """Returns the plan with enough slots in each declared buffer."""
    buffers = (
        (tensor, max(declared, int(slots(plan, tensor).max(initial=0))))
        for tensor, declared in plan.buffers
    )
    return replace(plan, buffers=tuple(buffers))
