"""A bench in numpy, for machines without torch."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runtimes.calibration.benches import Sample, memory_bytes


class NumpyBench:
    """Attention in plain numpy, for machines without torch."""

    name, kind, dtype = "numpy", "numpy", "float32"
    kinds: tuple[str, ...] = ("full",)

    def __init__(self) -> None:
        self.libraries, self.ranks = f"numpy {np.__version__}", 1
        self.capacity = memory_bytes()
        self._random = np.random.default_rng(0)

    def _array(self, *shape: int, dtype: str = "float32") -> NDArray[np.floating[Any]]:
        return self._random.standard_normal(shape).astype(dtype)

    def prepare(self, sample: Sample, dtype: str) -> Callable[[], object]:
        q, out = (self._array(sample.heads, sample.rows, sample.head_dim) for _ in range(2))
        k, v = (self._array(sample.heads, sample.columns, sample.head_dim) for _ in range(2))

        def forward() -> object:
            scores = q @ k.swapaxes(1, 2)
            scores -= scores.max(axis=-1, keepdims=True)
            np.exp(scores, out=scores)
            return scores @ v / scores.sum(axis=-1, keepdims=True)

        def backward() -> object:
            scores = np.exp(q @ k.swapaxes(1, 2) - 8.0)
            slope = (out @ v.swapaxes(1, 2) - 1.0) * scores
            return scores.swapaxes(1, 2) @ out, slope @ k, slope.swapaxes(1, 2) @ q

        return forward if sample.pass_ == "forward" else backward

    def merging(self, rows: int, heads: int, head_dim: int) -> Callable[[], object]:
        total, part = (self._array(heads, rows, head_dim) for _ in range(2))
        weight = self._array(heads, rows, 1)
        return lambda: np.add(total, weight * (part - total), out=total)

    def copying(self, size: int) -> Callable[[], object]:
        a, b = (np.ones(size // 8) for _ in range(2))
        return lambda: np.copyto(a, b)

    def multiplying(self, size: int, dtype: str) -> Callable[[], object]:
        a, b = (self._array(size, size, dtype=dtype) for _ in range(2))
        return lambda: a @ b

    def seconds(self, run: Callable[[], object], times: int) -> float:
        began = time.perf_counter()  # the thread's own clock would miss numpy's other threads
        for _ in range(times):
            run()
        return time.perf_counter() - began
