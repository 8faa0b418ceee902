"""Turns a plan into a program that a person can read.

Each generator takes a verified plan and returns the source of one file, for JAX or for torch, that
computes exactly the attention the plan describes and imports nothing of ringloom. Regular plans
become loops over recovered formulas, so a program does not grow with the number of ranks.
"""

from codegen.emitting import TARGETS, emit

__all__ = ["TARGETS", "emit"]
