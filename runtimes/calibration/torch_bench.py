"""A bench in torch, of the kernels that emitted programs call.

On a CPU that is one core, timed by the thread's own clock; on a CUDA device, by its events.
"""

import os
import platform
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import torch
import torch.nn.attention

from runtimes.calibration.benches import Bench, Sample
from runtimes.machine import memory_bytes

CUDNN = torch.nn.attention.SDPBackend.CUDNN_ATTENTION.value
DTYPES = {name: getattr(torch, name) for name in ("bfloat16", "float16", "float32", "float64")}


class TorchBench(Bench):
    """Times kernel calls, merges, copies and products on one device; kind is cpu or cuda."""

    def __init__(self, kind: str) -> None:
        self.kind, self.kinds = kind, tuple[str, ...](["full", "causal"])
        self._device, self._cuda = torch.device(kind), kind == "cuda"
        torch.set_num_threads(1)
        torch.manual_seed(0)
        self.libraries = f"torch {torch.__version__}"
        if self._cuda:
            about = torch.cuda.get_device_properties(0)
            self.name, self.dtype = about.name, "bfloat16"
            self.ranks, self.capacity = torch.cuda.device_count(), float(about.total_memory)
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
        """Returns a function that calls the kernel of this device once."""
        heads, kv_heads = sample.heads, sample.kv_heads or sample.heads
        q = self._random(1, heads, sample.rows, sample.head_dim, dtype=dtype)
        k, v = (
            self._random(1, kv_heads, sample.columns, sample.head_dim, dtype=dtype)
            for _ in range(2)
        )
        rule, aten = (0.0, sample.kind == "causal"), torch.ops.aten
        if self._cuda:
            seed = torch.zeros((), dtype=torch.int64, device=self._device)
            sizes = None, None, sample.rows, sample.columns
            saved: tuple[Any, ...] = *sizes, *rule, seed, seed
            forward = partial(aten._scaled_dot_product_flash_attention, q, k, v, *rule)
            kernel = aten._scaled_dot_product_flash_attention_backward
            if aten._fused_sdp_choice(q, k, v, None, *rule, enable_gqa=True) == CUDNN:
                saved = seed, seed, None, *sizes, *rule
                forward = partial(
                    aten._scaled_dot_product_cudnn_attention, q, k, v, None, True, *rule
                )
                kernel = aten._scaled_dot_product_cudnn_attention_backward
        else:
            mask, saved = _half_hidden(sample, q.dtype), rule
            forward = partial(
                aten._scaled_dot_product_flash_attention_for_cpu, q, k, v, *rule, attn_mask=mask
            )
            kernel = partial(
                aten._scaled_dot_product_flash_attention_for_cpu_backward, attn_mask=mask
            )
        if sample.pass_ == "forward":
            return forward
        out, lse = forward()[:2]
        return partial(kernel, torch.randn_like(q), q, k, v, out, lse, *saved)

    def merging(self, rows: int, heads: int, head_dim: int) -> Callable[[], object]:
        """Returns a function that merges a partial output into another, as emitted programs do."""
        total = self._random(1, heads, rows, head_dim + 1)
        o = self._random(1, heads, rows, head_dim, dtype=self.dtype)
        lse = self._random(1, heads, rows, 1)

        def merge() -> None:
            weight = torch.sigmoid(lse - total[..., head_dim:]).nan_to_num(0.0)
            total[..., :head_dim].lerp_(o.to(total.dtype), weight)
            total[..., head_dim:] = torch.logaddexp(total[..., head_dim:], lse)

        return merge

    def copying(self, size: int) -> Callable[[], object]:
        """Returns a function that copies `size` bytes within this device's memory."""
        a, b = (torch.ones(size // 4, device=self._device) for _ in range(2))
        return lambda: a.copy_(b)

    def multiplying(self, size: int, dtype: str) -> Callable[[], object]:
        """Returns a square matrix product; tf32 is float32 with its products rounded."""
        products = torch.backends.cuda.matmul
        a, b = (self._random(size, size, dtype=dtype.replace("tf32", "float32")) for _ in range(2))

        def product() -> Any:
            products.allow_tf32 = dtype == "tf32"
            return a @ b

        return product

    def seconds(self, run: Callable[[], object], times: int) -> float:
        """Returns the seconds of `times` calls: of the device on CUDA, else of this thread."""
        if not self._cuda:
            began = time.thread_time()
            for _ in range(times):
                run()
            return time.thread_time() - began
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        first.record()
        for _ in range(times):
            run()
        last.record()
        torch.cuda.synchronize()
        return float(first.elapsed_time(last)) / 1e3


def _half_hidden(sample: Sample, dtype: Any) -> Any:
    """Returns an explicit mask of a masked call, None for other calls; every row sees a column."""
    if sample.kind != "masked":
        return None
    seen = torch.rand(sample.rows, sample.columns) < 0.5
    seen[:, 0] = True
    return torch.zeros(seen.shape, dtype=dtype).masked_fill_(~seen, -torch.inf)


def processor() -> str:
    """Returns the name of this machine's processor."""
    named = list[str]()
    with suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as file:  # on Linux
        named = [line for line in file if line.startswith("model name")]
    name = named[0].partition(":")[2].strip() if named else ""
    return name or platform.processor() or platform.machine() or socket.gethostname()
