"""Loops: a plan's rows read back as a short program of steps, transfers and attends."""

from planner.loops.check import check
from planner.loops.recovery import recover, recovered

__all__ = ["check", "recover", "recovered"]
