"""Analyses cached on the plan: plans never change, and several analyses need the same results.

The recurrence engine asks for the bytes of every message (benchmarks/bench_scale.py).
"""

from collections.abc import Callable
from functools import wraps
from typing import TypeVar

from ringloom.planner.ir import Plan

Answer = TypeVar("Answer")


def cached_on_plan(analysis: Callable[[Plan], Answer]) -> Callable[[Plan], Answer]:
    """Memoises a plan analysis on the plan object; callers must not modify the result."""
    name = f"{analysis.__module__}.{analysis.__qualname__}"

    @wraps(analysis)
    def cached(plan: Plan) -> Answer:
        results = vars(plan)
        if name not in results:
            results[name] = analysis(plan)
        answer: Answer = results[name]
        return answer

    return cached
