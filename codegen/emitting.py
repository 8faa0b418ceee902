"""emit(plan, target)   the source of a program: a plan lowered, then written for one framework."""

from collections.abc import Callable

from codegen import jax_program, torch_layer, torch_program
from codegen.lowering import Program, lower
from planner.errors import PlanError
from planner.ir import Plan

Writer = Callable[[Program], str]
TARGETS = ("torch", "jax")
# What a program is, by target: attention alone, attention whose tables are an argument, or a layer.
WRITERS: dict[tuple[str, str], Writer] = {
    ("torch", "attention"): torch_program.write,
    ("torch", "layer"): torch_layer.write,
    ("jax", "attention"): jax_program.write,
}


def emit(
    plan: Plan | tuple[Plan, Plan], target: str, *, dynamic: bool = False, layer: bool = False
) -> str:
    """The source of one file that computes a forward plan, or a (forward, backward) pair.

    `dynamic`: its tables are an argument, for masks that change with every batch. `layer`: a
    decoder layer around it. Raises PlanError for an unknown target, for both at once, and for a
    plan that no program can be written for.
    """
    if target not in TARGETS:
        raise PlanError(f"unknown target {target!r}: choose one of {', '.join(TARGETS)}")
    if dynamic and layer:
        raise PlanError("a program is dynamic or a layer, not both: emit two files")
    kind = "dynamic" if dynamic else "layer" if layer else "attention"
    if (target, kind) not in WRITERS:
        there = ", ".join(f"{name} {some}" for name, some in WRITERS)
        raise PlanError(f"no {kind} program for {target} yet; there are: {there}")
    return WRITERS[target, kind](lower(plan))
