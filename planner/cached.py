"""cached_on_plan   caches analyses on the plan, which never changes.

The recurrence engine reads the bytes of every message many times (benchmarks/bench_scale.py).
"""

from collections.abc import Callable
from functools import wraps
from typing import TypeVar

from ringloom.planner.ir import Plan

Result = TypeVar("Result")


def cached_on_plan(analysis: Callable[[Plan], Result]) -> Callable[[Plan], Result]:
    """Memoises a plan analysis on the plan object; callers must not modify the result."""
    key = f"{analysis.__module__}.{analysis.__qualname__}"

    @wraps(analysis)
    def cached(plan: Plan) -> Result:
        results = vars(plan)
        if key not in results:
            results[key] = analysis(plan)
        result: Result = results[key]
        return result

    return cached
