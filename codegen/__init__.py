"""Turns a plan into a program that a person can read.

    plan -> loops -> torch or JAX source     `emitting`, then a room per target
    plan -> tables -> the same interface     where a plan has no loops, or its mask may change

A program computes exactly the attention that its plan describes and imports nothing of ringloom.
What depends on the plan is printed (layout, schedule, mask, header); what does not lies in modules
under `torch/parts` and `jax/parts`, which emission reads as text and tests import.
"""

from codegen.emitting import emit, tables
from codegen.programs import PLATFORMS, TARGETS

__all__ = ["PLATFORMS", "TARGETS", "emit", "tables"]
