"""Times the operations of attention on this machine, one operation at a time.

A bench uses torch on a CUDA device, torch on one CPU core, or numpy if torch is not installed. With
torch on a CPU it measures thread time, which other processes hardly affect.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module, util
from typing import Any

import numpy as np

from ringloom.planner.errors import RingloomError
from ringloom.planner.ir import Pass
from ringloom.runtimes.machine import memory_bytes
from ringloom.runtimes.reference.online_softmax import attend, gradients


@dataclass(frozen=True, slots=True)
class Sample:
    """The sizes of a kernel call; `kind`: full, causal or masked."""

    pass_: Pass
    rows: int
    columns: int
    kind: str
    heads: int
    head_dim: int
    kv_heads: int = 0  # 0: equal to heads


class Bench:
    """A bench in plain numpy, for machines without torch.

    Dtypes are names; sizes are in elements unless stated.
    """

    name, kind, dtype = "numpy", "numpy", "float32"  # kind: cuda, cpu or numpy; dtype of inputs
    kinds: tuple[str, ...] = ("full",)  # of supported kernel calls
    libraries: str
    ranks: int  # on this machine
    capacity: float  # bytes of memory per rank
    clock = staticmethod(time.perf_counter)  # thread time would omit numpy's other threads

    def __init__(self) -> None:
        self.libraries, self.ranks = f"numpy {np.__version__}", 1
        self.capacity = memory_bytes()
        self._numbers = np.random.default_rng(0)

    def _random(self, *shape: int, dtype: str = "float32") -> Any:
        return self._numbers.standard_normal(shape).astype(dtype)

    def prepare(self, sample: Sample, dtype: str) -> Callable[[], object]:
        """Returns a function that makes one kernel call like the numpy backend."""
        q, dout = (self._random(sample.heads, sample.rows, sample.head_dim) for _ in range(2))
        k, v = (self._random(sample.heads, sample.columns, sample.head_dim) for _ in range(2))
        mask, scale = np.ones((), np.bool_), sample.head_dim**-0.5
        if sample.pass_ == "forward":
            return partial(attend, q, k, v, mask, scale)
        out, lse = attend(q, k, v, mask, scale)
        return partial(gradients, q, k, v, dout, lse, (dout * out).sum(axis=-1), mask, scale)

    def merging(self, rows: int, heads: int, head_dim: int) -> Callable[[], object]:
        """Returns a function that merges one partial output into another."""
        total, part = (self._random(heads, rows, head_dim) for _ in range(2))
        weight = self._random(heads, rows, 1)
        return lambda: np.add(total, weight * (part - total), out=total)

    def copying(self, size: int) -> Callable[[], object]:
        """Returns a function that copies `size` bytes."""
        a, b = (np.ones(size // 8) for _ in range(2))
        return lambda: np.copyto(a, b)

    def multiplying(self, size: int, dtype: str) -> Callable[[], object]:
        """Returns a function that multiplies two square matrices."""
        a, b = (self._random(size, size, dtype=dtype) for _ in range(2))
        return lambda: a @ b

    def seconds(self, run: Callable[[], object], times: int) -> float:
        """Returns the duration of `times` consecutive calls in seconds."""
        start = self.clock()
        for _ in range(times):
            run()
        return self.clock() - start


def bench(kind: str = "") -> Bench:
    """Returns the bench of a kind: "cuda", "cpu" or "numpy", by default the first available one.

    Raises RingloomError if the device or its library is missing.
    """
    kinds = ["numpy"]
    if util.find_spec("torch") is not None:
        kinds = ["cuda"] * import_module("torch").cuda.is_available() + ["cpu", "numpy"]
    chosen = kind or kinds[0]
    if chosen not in kinds:
        raise RingloomError(f"{chosen} is not available here: choose one of {', '.join(kinds)}")
    if chosen == "numpy":
        return Bench()
    device: Bench = import_module("ringloom.runtimes.calibration.torch_bench").TorchBench(chosen)
    return device
