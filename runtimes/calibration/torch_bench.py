"""Times the kernels and merges of emitted torch programs.

On a CPU it uses one core and measures thread time; on a CUDA device it uses CUDA events.
"""

import os
import platform
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from types import ModuleType
from typing import Any

import torch

from ringloom.codegen import emit
from ringloom.planner.planning import plan
from ringloom.planner.workload import Workload
from ringloom.runtimes.calibration.benches import Bench, Sample
from ringloom.runtimes.emitted import load
from ringloom.runtimes.machine import memory_bytes

DTYPES = {name: getattr(torch, name) for name in ("bfloat16", "float16", "float32", "float64")}


class TorchBench(Bench):
    """A bench in torch on one device; `kind`: cpu or cuda."""

    clock = staticmethod(time.thread_time)

    def __init__(self, kind: str) -> None:
        self.kind, self.kinds = kind, tuple[str, ...](["full", "causal"])
        self._device, self._cuda = torch.device(kind), kind == "cuda"
        torch.set_num_threads(1)
        torch.manual_seed(0)
        self.libraries = f"torch {torch.__version__}"
        if self._cuda:
            device = torch.cuda.get_device_properties(0)
            self.name, self.dtype = device.name, "bfloat16"
            self.ranks, self.capacity = torch.cuda.device_count(), float(device.total_memory)
            self.libraries += f", CUDA {torch.version.cuda}"
        else:
            self.name, self.dtype = processor(), "float32"
            self.kinds += ("masked",)
            self.ranks = os.cpu_count() or 1
            self.capacity = memory_bytes() / self.ranks
            self.libraries += ", one thread per rank"

    def _random(self, *shape: int, dtype: str = "float32") -> Any:
        return torch.randn(*shape, device=self._device).to(DTYPES[dtype])

    def prepare(self, sample: Sample, dtype: str) -> Callable[[], object]:
        """Returns a function that calls the emitted kernel for this device once."""
        rows, columns, heads = sample.rows, sample.columns, sample.heads
        q, dout = (self._random(1, heads, rows, sample.head_dim, dtype=dtype) for _ in range(2))
        shared = 1, sample.kv_heads or heads, columns, sample.head_dim
        k, v = (self._random(*shared, dtype=dtype) for _ in range(2))
        diagonals = sorted((0, columns - rows))  # a band with a pair in every row
        band = {"full": False, "causal": True, "masked": diagonals}[sample.kind]
        program = kernels("causal" if isinstance(band, bool) else "window:1")
        forward = partial(program.attend, q, k, v, band)
        if sample.pass_ == "forward":
            return forward
        return partial(program.attend_backward, dout, q, *forward(), k, v, band)

    def merging(self, rows: int, heads: int, head_dim: int) -> Callable[[], object]:
        """Returns a function that merges a partial output into another."""
        total, lse, part_lse = (self._random(1, heads, rows, n) for n in (head_dim, 1, 1))
        part = self._random(1, heads, rows, head_dim, dtype=self.dtype)
        return partial(kernels("causal").merge, total, lse, part, part_lse)

    def copying(self, size: int) -> Callable[[], object]:
        """Returns a function that copies `size` bytes within this device."""
        a, b = (torch.ones(size // 4, device=self._device) for _ in range(2))
        return lambda: a.copy_(b)

    def multiplying(self, size: int, dtype: str) -> Callable[[], object]:
        """Returns a function that multiplies square matrices; "tf32": of float32 with TF32."""
        products = torch.backends.cuda.matmul
        a, b = (self._random(size, size, dtype=dtype.replace("tf32", "float32")) for _ in range(2))

        def product() -> Any:
            products.allow_tf32 = dtype == "tf32"
            return a @ b

        return product

    def seconds(self, run: Callable[[], object], times: int) -> float:
        """Returns the duration of `times` calls in seconds, on CUDA measured by the device."""
        if not self._cuda:
            return super().seconds(run, times)
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        first.record()
        for _ in range(times):
            run()
        last.record()
        torch.cuda.synchronize()
        return float(first.elapsed_time(last)) / 1e3


@cache
def kernels(mask: str) -> ModuleType:
    """Returns an emitted program with the kernels of all programs for masks of this kind."""
    work = Workload(seq=1 << 12, heads=2, kv_heads=1, mask=mask)
    return load(emit(plan("ring", work, 2, pass_="both"), "torch"))


def processor() -> str:
    """Returns the name of this machine's processor."""
    lines = list[str]()
    with suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as file:  # on Linux
        lines = [line for line in file if line.startswith("model name")]
    name = lines[0].partition(":")[2].strip() if lines else ""
    return name or platform.processor() or platform.machine() or socket.gethostname()
