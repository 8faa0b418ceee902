"""Results cached on the plan: a plan never changes, and several analyses need the same ones.

The recurrence asks for the bytes of every message (benchmarks/bench_scale.py).
"""

from collections.abc import Callable
from functools import wraps
from typing import TypeVar

from ringloom.planner.ir import Plan

Answer = TypeVar("Answer")


def cached_on_plan(ask: Callable[[Plan], Answer]) -> Callable[[Plan], Answer]:
    """Decorator: caches the result of a function of a plan on the plan; do not modify results."""
    name = f"{ask.__module__}.{ask.__qualname__}"

    @wraps(ask)
    def kept(plan: Plan) -> Answer:
        known = vars(plan)
        if name not in known:
            known[name] = ask(plan)
        answer: Answer = known[name]
        return answer

    return kept
