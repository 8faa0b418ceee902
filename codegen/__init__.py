"""Turns a plan into a program that a person can read.

    plan -> loops -> ops -> torch or JAX source    lower, passes and check; a room per target
    plan -> tables -> the same interface           where a plan has no loops, or its mask may change

    lowering, checking    what `lower` and `check` are made of
    frame                 the file around a schedule: header, layout, mask, assembly
    torch, jax            printers, writers of tables, and `parts`, which stand in programs

    emit(plans, target)     the source of one file that computes a plan, or a pair of plans
    tables(plans, target)   the arrays that a dynamic program takes

Plans are verified first, unless they were. A program computes exactly the attention that its plan
describes and imports nothing of ringloom. What depends on the plan is printed (layout, schedule,
mask, header); what does not lies in modules under `torch/parts` and `jax/parts`, which emission
reads as text and tests import.
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
PARSING = Lock()  # Python 3.11 counts the depth of syntax trees for all threads at once


def emit(plans: AnyPlans, target: str, **options: Unpack[Options]) -> str:
    """The source of one file that computes a forward plan, or a (forward, backward) pair.

    `dynamic`: its tables are an argument, for masks that change with every batch; `max_calls`
    bounds the tiles of a step of a JAX program. `platform`: the branches of a JAX program.
    `command`: what makes the file again, for the header.
    Raises PlanError for an unknown target or platform, with the verifier's sentence for a wrong
    plan, and for a plan that no program can be written for.
    """
    program = program_of(ensure_verified(plans), target, **options)
    with PARSING:
        source: str = _room(program.target).write(program)
    return source


def mask_tables(
    plans: AnyPlans, target: str, *, mask: Mask | None = None, max_calls: int | None = None
) -> Tables:
    """The tables of plans for `target`'s dynamic program of their ranks and heads: name -> array.

    For JAX the plans are those of the program, under a full mask, and `mask` is the one to run.
    Raises PlanError as `emit` does, for a mask beside torch plans, which have their own, and for
    tables that exceed `max_calls`.
    """
    if mask is not None and target != "jax":
        raise PlanError(f"plans for {target} have a mask of their own: plan under {mask}")
    program = program_of(ensure_verified(plans), target, dynamic=True, max_calls=max_calls)
    room = _room(program.target)
    made: Tables = room.tables(program) if mask is None else room.tables(program, mask)
    return made


def save_tables(made: Tables, path: str) -> None:
    """Write tables to a file that a dynamic program loads; RingloomError where that cannot be."""
    file = BytesIO()
    np.savez_compressed(file, allow_pickle=False, **made)
    write(path, file.getvalue())


def _room(target: Target) -> Any:
    """The writer of a target, imported when it is asked for."""
    return import_module(f"ringloom.codegen.{target}")


if __name__ != "ringloom.codegen":
    raise ImportError(f"import ringloom.codegen, not {__name__}")
