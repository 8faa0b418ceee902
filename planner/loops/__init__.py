"""Loops: recovers a short program of steps, transfers and attends from a plan's rows."""

from ringloom.planner.loops.check import check
from ringloom.planner.loops.recovery import recover, recover_expansion

__all__ = ["check", "recover", "recover_expansion"]
