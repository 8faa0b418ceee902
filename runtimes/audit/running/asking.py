"""Checks parameters and results of an audited function, for all frameworks."""

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from ringloom.runtimes.arrays import Array
from ringloom.runtimes.audit.report import Fault

Complaints = tuple[tuple[int, str, str], ...]  # rank, kind of fault, sentence


class EndedError(Exception):
    """A call that returned no results, with its `faults`."""

    def __init__(self, faults: tuple[Fault, ...]) -> None:
        super().__init__(faults)
        self.faults = faults


def has_parameter(function: Callable[..., Any], name: str) -> bool:
    """Returns True for a function with a parameter of this name."""
    try:
        return name in inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False


def discard(text: str) -> None:
    """Discards a note."""


def widen(array: Array) -> Array:
    """Returns a float64 array unchanged, and other arrays as float32."""
    return array if array.dtype == np.float64 else array.astype(np.float32)


def check_result(out: Any, q: Any, v: Any, rank: int, dtype: str) -> Complaints:
    """Returns a complaint about a wrong shape or dtype of a result, or none."""
    shape = *q.shape[:3], v.shape[3]
    if tuple(out.shape) != shape:
        shapes = f"{list(out.shape)} instead of {list(shape)}"
        return ((rank, "wrong shape", f"rank {rank} returned a result of shape {shapes}"),)
    if out.dtype != q.dtype:
        expected = str(q.dtype).rpartition(".")[2]
        return ((rank, "wrong dtype", f"rank {rank} returned {dtype} for {expected} inputs"),)
    return ()
