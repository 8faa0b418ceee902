"""emit(plan, target)   the source of a program: a plan lowered, then written for one framework."""

from collections.abc import Callable

from codegen import jax_program, torch_program
from codegen.lowering import Program, lower
from planner.errors import PlanError
from planner.ir import Plan

TARGETS: dict[str, Callable[[Program], str]] = {
    "torch": torch_program.write,
    "jax": jax_program.write,
}


def emit(plan: Plan | tuple[Plan, Plan], target: str) -> str:
    """The source of one file that computes a forward plan, or a (forward, backward) pair.

    Raises PlanError for an unknown target, and for a plan that no program can be written for.
    """
    if target not in TARGETS:
        raise PlanError(f"unknown target {target!r}: choose one of {', '.join(TARGETS)}")
    return TARGETS[target](lower(plan))
