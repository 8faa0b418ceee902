"""Checks parameters and results of an audited function, for all frameworks."""

import inspect
from collections.abc import Callable
from typing import Any

from ringloom.runtimes.audit.report import Fault

Said = tuple[tuple[int, str, str], ...]  # rank, kind of fault, sentence


class EndedError(Exception):
    """A call returned no results; `faults` are those that it showed."""

    def __init__(self, faults: tuple[Fault, ...]) -> None:
        super().__init__(faults)
        self.faults = faults


def takes(function: Callable[..., Any], name: str) -> bool:
    """Returns True for a function with a parameter of this name."""
    try:
        return name in inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False


def nothing(text: str) -> None:
    """Discards a note."""


def untensor(result: Any) -> str:
    """Names a result whose first entry is no tensor."""
    return "None" if result is None else f"a {type(result).__name__}"


def misfits(out: Any, q: Any, v: Any, rank: int, dtype: str) -> Said:
    """Returns what is wrong with the shape or dtype of a result, if anything."""
    shape = *q.shape[:3], v.shape[3]
    if tuple(out.shape) != shape:
        sizes = f"{list(out.shape)} instead of {list(shape)}"
        return ((rank, "wrong shape", f"rank {rank} returned a result of shape {sizes}"),)
    if out.dtype != q.dtype:
        wanted = str(q.dtype).rpartition(".")[2]
        return ((rank, "wrong dtype", f"rank {rank} returned {dtype} for inputs of {wanted}"),)
    return ()
