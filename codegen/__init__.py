"""Turns plans into readable programs.

    plan -> loops -> ops -> torch or JAX source    lower, passes and check; a package per target
    plan -> tables -> a program that reads them    if a plan has no loops, or its mask may change

    lowering, checking    the modules behind `lower` and `check`
    frame                 the file around a schedule: header, layout, mask, assembly
    torch, jax            printers, writers of tables, and `parts`, which are copied into programs

    emit(plans, target)          the source of one file that computes a plan or a pair of plans
    mask_tables(plans, target)   the arrays that a dynamic program takes

Plans are verified before anything is printed. A program computes exactly the attention of its plan
and imports nothing from ringloom. The layout, schedule, mask and header depend on the plan and are
printed. All other code is copied from modules under `torch/parts` and `jax/parts`, which the tests
import.
"""

from importlib import import_module
from io import BytesIO
from threading import Lock
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from ringloom.codegen.programs import PLATFORMS, TARGETS, Options, Target, program_of
from ringloom.planner.disk import write
from ringloom.planner.errors import PlanError
from ringloom.planner.masks import Mask
from ringloom.planner.plans import AnyPlans
from ringloom.planner.verify import ensure_verified

__all__ = ["PLATFORMS", "TARGETS", "emit", "save_tables", "tables"]
Tables = dict[str, NDArray[Any]]
PARSING = Lock()  # Python 3.11 counts the depth of syntax trees across threads


def emit(plans: AnyPlans, target: str, **options: Unpack[Options]) -> str:
    """Returns the source of one file that computes a forward plan, or a (forward, backward) pair.

    `dynamic`: the program takes tables as an argument, for masks that change with every batch;
    `max_calls` bounds the tiles per step of a dynamic JAX program. `platform`: the kernels of a JAX
    program. `command`: the command that generates the file, for the header.
    Raises PlanError for an unknown target or platform, a plan that fails verification, and a plan
    that cannot be printed as a program.
    """
    program = program_of(ensure_verified(plans), target, **options)
    with PARSING:
        source: str = _import_target(program.target).write(program)
    return source


def mask_tables(
    plans: AnyPlans, target: str, *, mask: Mask | None = None, max_calls: int | None = None
) -> Tables:
    """Returns the tables of plans for a dynamic program of `target`: name -> array.

    For JAX, pass plans made for a full mask, and the `mask` to run. Raises PlanError as `emit`
    does, for a `mask` with torch plans, which have their own, and for tables that exceed
    `max_calls`.
    """
    if mask is not None and target != "jax":
        raise PlanError(f"plans for {target} have their own mask: plan with mask {mask} instead")
    program = program_of(ensure_verified(plans), target, dynamic=True, max_calls=max_calls)
    package = _import_target(program.target)
    tables: Tables = package.tables(program) if mask is None else package.tables(program, mask)
    return tables


def save_tables(tables: Tables, path: str) -> None:
    """Writes tables to a file that a dynamic program loads; raises RingloomError on failure."""
    file = BytesIO()
    np.savez_compressed(file, allow_pickle=False, **tables)
    write(path, file.getvalue())


def _import_target(target: Target) -> Any:
    """Imports the package of a target."""
    return import_module(f"ringloom.codegen.{target}")


if __name__ != "ringloom.codegen":
    raise ImportError(f"import ringloom.codegen, not {__name__}")
