"""Kernel calls: the only place where ringloom cuts rectangles for kernels."""

from ringloom.planner.kernel_calls.calls import rectangle_calls
from ringloom.planner.kernel_calls.runs import Band, Call, Takes, band_calls

__all__ = ["Band", "Call", "Takes", "band_calls", "rectangle_calls"]
