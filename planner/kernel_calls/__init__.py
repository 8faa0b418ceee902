"""The kernel calls of a rectangle: the one place where rectangles are cut for kernels."""

from planner.kernel_calls.calls import Call, rectangle_calls
from planner.kernel_calls.runs import Band, band_calls

__all__ = ["Band", "Call", "band_calls", "rectangle_calls"]
