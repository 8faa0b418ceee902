"""Answers about a plan that are kept with it: a plan never changes, and many ask the same."""

from collections.abc import Callable
from functools import wraps
from typing import TypeVar

from planner.ir import Plan

Answer = TypeVar("Answer")


def once(ask: Callable[[Plan], Answer]) -> Callable[[Plan], Answer]:
    """The same function, which keeps its answer with the plan; whoever asks must not change it."""
    name = f"{ask.__module__}.{ask.__qualname__}"

    @wraps(ask)
    def kept(plan: Plan) -> Answer:
        known = vars(plan)
        if name not in known:
            known[name] = ask(plan)
        answer: Answer = known[name]
        return answer

    return kept
