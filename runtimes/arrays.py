"""Inputs and outputs of a run: [batch, heads, seq, head_dim] arrays of the workload's dtype.

Partial sums are wider than their inputs: float32 for 16-bit and float32 inputs, float64 for
float64 inputs.
"""

from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from planner.errors import RingloomError
from planner.workload import DTYPES, Workload

Array = NDArray[Any]


def dtype_of(name: str) -> np.dtype[Any]:
    """The numpy dtype of a workload's dtype; raises RingloomError for an unknown one."""
    if name not in DTYPES:
        raise RingloomError(f"unknown dtype {name!r}: choose one of {', '.join(DTYPES)}")
    return np.dtype(ml_dtypes.bfloat16) if name == "bfloat16" else np.dtype(name)


def wide(name: str) -> np.dtype[Any]:
    """The dtype that partial sums of inputs of dtype `name` are kept in."""
    return dtype_of("float64" if name == "float64" else "float32")


def shapes(work: Workload) -> dict[str, tuple[int, int, int, int]]:
    """The shape of each array by its name: [batch, heads, tokens, head_dim]."""
    queries = work.batch, work.heads, work.seq, work.head_dim
    keys = work.batch, work.kv_heads, work.kv_seq, work.head_dim
    return {"q": queries, "k": keys, "v": keys, "dout": queries}


def check_arrays(work: Workload, **arrays: Array) -> None:
    """Raise RingloomError unless each array, given by its name, fits the workload."""
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray):
            raise RingloomError(f"{name} must be a numpy array, not {type(array).__name__}")
        shape, dtype = shapes(work)[name], dtype_of(work.dtype)
        if array.shape != shape or array.dtype != dtype:
            raise RingloomError(
                f"{name} is {array.dtype} {list(array.shape)},"
                f" but the workload takes {dtype} {list(shape)}"
            )


def draw(work: Workload, seed: int) -> tuple[Array, Array, Array, Array]:
    """q, k, v and dout of independent standard normal numbers, rounded to the workload's dtype."""
    random = np.random.default_rng(seed)
    q, k, v, dout = (
        random.standard_normal(shape).astype(dtype_of(work.dtype))
        for shape in shapes(work).values()
    )
    return q, k, v, dout
