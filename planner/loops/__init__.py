"""Loops: a plan's rows read back as a short program of steps, transfers and attends."""

from planner.loops.check import check
from planner.loops.recovery import recover, recovered, recovered_whole

__all__ = ["check", "recover", "recovered", "recovered_whole"]
