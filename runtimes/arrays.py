"""Draws, checks and stores the inputs and outputs of runs: arrays of the workload's dtype.

Partial sums have a wider dtype than their inputs: float32 for 16-bit and float32 inputs, float64
for float64 inputs.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from ringloom.planner.errors import RingloomError, unknown
from ringloom.planner.workload import DTYPES, Workload

Array = NDArray[Any]


def dtype_of(name: str) -> np.dtype[Any]:
    """Returns the numpy dtype of a workload's dtype; raises RingloomError for an unknown name."""
    if name not in DTYPES:
        raise RingloomError(unknown("dtype", name, DTYPES))
    return np.dtype(ml_dtypes.bfloat16) if name == "bfloat16" else np.dtype(name)


def sum_dtype_of(name: str) -> np.dtype[Any]:
    """Returns the dtype of partial sums for inputs of dtype `name`."""
    return dtype_of("float64" if name == "float64" else "float32")


def shapes(work: Workload) -> dict[str, tuple[int, ...]]:
    """Returns array shapes by name: sinks [heads], others [batch, heads, tokens, dimension]."""
    q_shape = work.batch, work.heads, work.seq
    k_shape = work.batch, work.kv_heads, work.kv_seq
    return {
        "q": (*q_shape, work.head_dim),
        "k": (*k_shape, work.head_dim),
        "v": (*k_shape, work.v_head_dim),
        "dout": (*q_shape, work.v_head_dim),
        "sinks": (work.heads,),
    }


def check_arrays(work: Workload, sinks: Array | None = None, **arrays: Array) -> None:
    """Raises RingloomError unless each named array has the workload's shape and dtype.

    `sinks` is required if the workload has sinks, and must be None otherwise.
    """
    if work.sinks and sinks is None:
        raise RingloomError(
            f"the workload has sinks: pass sinks=, one logit for each of {work.heads} heads"
        )
    if not work.sinks and sinks is not None:
        raise RingloomError("the workload has no sinks: plan Workload(..., sinks=True)")
    for name, array in (arrays | ({} if sinks is None else {"sinks": sinks})).items():
        if not isinstance(array, np.ndarray):
            raise RingloomError(f"{name} must be a numpy array, not {type(array).__name__}")
        shape, dtype = shapes(work)[name], dtype_of(work.dtype)
        if array.shape != shape or array.dtype != dtype:
            raise RingloomError(
                f"{name} is {array.dtype} {list(array.shape)},"
                f" but the workload takes {dtype} {list(shape)}"
            )


def draw(work: Workload, seed: int) -> tuple[Array, Array, Array, Array]:
    """Returns standard normal q, k, v and dout, rounded to the workload's dtype."""
    random, shape = np.random.default_rng(seed), shapes(work)
    q, k, v, dout = (
        random.standard_normal(shape[name]).astype(dtype_of(work.dtype))
        for name in ("q", "k", "v", "dout")
    )
    return q, k, v, dout


def draw_sinks(work: Workload, seed: int) -> Array | None:
    """Returns standard normal sinks, [heads], or None if the workload has no sinks."""
    random = np.random.default_rng([seed, 2])
    logits = random.standard_normal(shapes(work)["sinks"]).astype(dtype_of(work.dtype))
    return logits if work.sinks else None


def save_arrays(path: Path, arrays: Sequence[Array]) -> None:
    """Writes arrays to an .npz file."""
    np.savez(path, *arrays)


def load_arrays(path: Path) -> list[Array]:
    """Returns the arrays that `save_arrays` wrote to a file, in their order.

    Never executes code from the file, so the file need not be trusted. Raises numpy's errors for
    other files.
    """
    with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
        arrays = [stored[name] for name in stored.files]
    # numpy has no bfloat16: it loads such arrays as two bytes per element
    return [x.view(dtype_of("bfloat16")) if x.dtype == "V2" else x for x in arrays]
