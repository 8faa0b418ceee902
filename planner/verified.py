"""ensure_verified(plans)   verifies a plan once: what passed is remembered on the plan itself.

The mark is no field, so `dataclasses.replace` makes a plan without it, whatever was replaced.
"""

from typing import TypeVar

from planner.errors import PlanError
from planner.ir import Plan
from planner.verify import verify, verify_pair

Plans = TypeVar("Plans", bound=Plan | tuple[Plan, Plan])
MARK = "_verified"


def mark_verified(plan: Plan) -> Plan:
    """Remember that the verifier passed this plan; for the verifier alone."""
    object.__setattr__(plan, MARK, True)
    return plan


def ensure_verified(plans: Plans) -> Plans:
    """The plan or pair, verified now unless it was before; PlanError of the first wrong one."""
    if isinstance(plans, Plan):
        if MARK not in vars(plans):
            mark_verified(verify(plans))
    else:
        for plan in plans:
            ensure_verified(plan)
        if len(plans) == 2 and plans[1].start:
            _ensure_pair(*plans)
    return plans


def _ensure_pair(forward: Plan, backward: Plan) -> None:
    """Each time: another forward plan may leave other copies behind."""
    if forward.ranks != backward.ranks:
        raise PlanError("a backward pass that starts from copies needs the forward's ranks")
    verify_pair(forward, backward)
