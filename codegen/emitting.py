"""emit(plan, target)   the source of a program: a plan lowered, then written for one framework.
tables(plan, target)   the arrays that a dynamic program takes: a plan lowered, as plain numbers.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codegen import (
    jax_dynamic,
    jax_layer,
    jax_program,
    torch_dynamic,
    torch_layer,
    torch_program,
    torch_tables,
)
from codegen.lowering import Program, lower
from planner.errors import PlanError
from planner.ir import Plan

Writer = Callable[[Program], str]
Tables = dict[str, NDArray[Any]]
TARGETS = ("torch", "jax")
# What a program is, by target: attention alone, attention whose tables are an argument, or a layer.
WRITERS: dict[tuple[str, str], Writer] = {
    ("torch", "attention"): torch_program.write,
    ("torch", "dynamic"): torch_dynamic.write,
    ("torch", "layer"): torch_layer.write,
    ("jax", "attention"): jax_program.write,
    ("jax", "dynamic"): jax_dynamic.write,
    ("jax", "layer"): jax_layer.write,
}
# The tables of a plan, by target.
TABLES: dict[str, Callable[[Program], Tables]] = {
    "torch": torch_tables.tables,
    "jax": jax_dynamic.tables,
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


def tables(plan: Plan | tuple[Plan, Plan], target: str) -> Tables:
    """The tables of a plan for `target`'s dynamic program of its ranks and heads: name -> array.

    Raises PlanError for a target that has none, and for a plan that cannot be lowered.
    """
    if target not in TABLES:
        raise PlanError(f"no tables for {target!r}: choose one of {', '.join(TABLES)}")
    return TABLES[target](lower(plan))


def save_tables(found: Tables, path: str) -> None:
    """Write tables to a file that a dynamic program loads; PlanError where that cannot be done."""
    try:
        with open(path, "wb") as file:
            np.savez_compressed(file, allow_pickle=False, **found)
    except OSError as error:
        raise PlanError(f"cannot write {path}: {error.strerror}") from None
