"""Loops: recovers a short program of transfers and attends from the rows of a plan."""

from ringloom.planner.loops.check import check
from ringloom.planner.loops.recovery import recover, recover_expansion

__all__ = ["check", "recover", "recover_expansion"]
