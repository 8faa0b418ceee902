"""Timing what attention is made of, on this machine: kernel calls, merges, copies, products.

A bench times one thing at a time: torch on a CUDA device, torch on one CPU core, or numpy where
torch is not installed. CPU times are those of the thread, which other processes hardly disturb.
"""

import os
import platform
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import date
from importlib import import_module, util
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

SHORTEST = 1e-3  # seconds of one repeat: shorter calls are made several times in a row


@dataclass(frozen=True, slots=True)
class Sample:
    """A kind of kernel call: `kind` is full, causal or masked; `pass_` forward or backward."""

    pass_: str
    rows: int
    columns: int
    kind: str
    heads: int
    head_dim: int
    kv_heads: int = 0  # 0: as many as heads


class Bench(Protocol):
    """Something that runs what is timed; dtypes by name, sizes in elements unless said."""

    name: str
    kind: str  # cuda, cpu or numpy
    dtype: str  # of the inputs of timed kernel calls
    kinds: tuple[str, ...]  # of kernel calls that it has
    libraries: str
    ranks: int  # that share this machine
    capacity: float  # bytes of memory of one rank

    def prepare(self, sample: Sample, dtype: str) -> Callable[[], object]:
        """A function that makes such a call once."""
        ...

    def merging(self, rows: int, heads: int, head_dim: int) -> Callable[[], object]:
        """A function that merges a partial output into another, as emitted programs do."""
        ...

    def copying(self, size: int) -> Callable[[], object]:
        """A function that copies some bytes."""
        ...

    def multiplying(self, size: int, dtype: str) -> Callable[[], object]:
        """A function that multiplies two square matrices."""
        ...

    def seconds(self, run: Callable[[], object], times: int) -> float:
        """Seconds that so many calls in a row take."""
        ...


def bench(kind: str = "") -> Bench:
    """The bench of this machine: "cuda", "cpu" or "numpy", by default the first there is."""
    if not kind:
        kind = "numpy"
        if util.find_spec("torch") is not None:
            kind = "cuda" if import_module("torch").cuda.is_available() else "cpu"
    if kind == "numpy":
        found: Bench = NumpyBench()
    else:
        found = import_module("runtimes.calibration_torch").TorchBench(kind)
    return found


def medians(
    on: Bench,
    runs: Sequence[Callable[[], object]],
    rounds: int,
    track: Callable[[Iterable[int]], Iterable[int]] = iter,
) -> list[float]:
    """Median seconds of one call of each; all take turns, so that what disturbs one disturbs all.

    First calls, which set things up, are not counted. `track` may wrap the rounds, to show
    progress.
    """
    times = []
    for run in runs:
        run()
        times.append(max(1, int(SHORTEST / max(on.seconds(run, 1), 1e-7))))
    found = [
        [on.seconds(run, n) / n for run, n in zip(runs, times, strict=True)]
        for _ in track(range(rounds))
    ]
    middle: list[float] = np.median(found, axis=0).tolist()
    return middle


def about(on: Bench) -> str:
    """Where measurements come from: "measured here, 2026-01-31, torch 2.13.0"."""
    return f"measured here, {date.today().isoformat()}, {on.libraries}"


def processor() -> str:
    """The name of this machine's processor, as far as it tells."""
    named = list[str]()
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            named = [line for line in file if line.startswith("model name")]
    except OSError:
        pass  # not Linux
    name = named[0].partition(":")[2].strip() if named else ""
    return name or platform.processor() or platform.machine() or socket.gethostname()


def memory_bytes() -> float:
    """Bytes of this machine's memory."""
    return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def cpu_seconds(run: Callable[[], object], times: int) -> float:
    """CPU seconds of this thread."""
    began = time.thread_time()
    for _ in range(times):
        run()
    return time.thread_time() - began


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
