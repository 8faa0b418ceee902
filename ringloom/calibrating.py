"""calibrate()   times the kernels, memory and links of this machine, and fits hardware constants.

kernel calls      square, wide and tall, causal and masked, in both passes
matrix products   the peak of each dtype
copies            the bandwidth of the memory
merging           merges of partial outputs, as in emitted programs
messages          transfers between two processes or two devices
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from importlib import import_module
from typing import Any

import numpy as np

from ringloom.planner.ir import Pass
from ringloom.runtimes.calibration.benches import Bench, Sample, bench
from ringloom.simulator.hardware import Constant, Hardware
from ringloom.simulator.hardware.measured import (
    SKIPS,
    Kernel,
    Timed,
    fit_kernel,
    fit_link,
    measured_hardware,
)

ROUNDS = {"cpu": (31, 9), "cuda": (9, 5), "numpy": (9, 3)}  # full and quick runs
FULL_SHAPES = (  # rows and columns of calls without a mask
    *((64, 64), (256, 256), (1024, 1024), (256, 1024), (1024, 256)),
    *((64, 1024), (1024, 64), (512, 2048), (2048, 512)),
)
CAUSAL_SIZES = 128, 512, 1024, 1536, 2048  # rows
MASKED_SHAPES = (256, 512), (512, 1024), (1024, 2048)
CPU_HEADS = (1, 64), (4, 64), (2, 128), (4, 32)  # heads, head_dim
GPU_HEADS = (16, 128), (16, 64), (64, 128)
GPU_SCALE = 4  # factor on rows and columns on a GPU
GPU_TILE = 128, 64  # queries and keys of torch's flash kernels, d 128
MERGE_SHAPES = {"cpu": (4096, 8, 64), "cuda": (8192, 32, 128), "numpy": (4096, 8, 64)}
COPY_BYTES = 1 << 27
PRODUCT_SIZES = {"cpu": 768, "cuda": 8192, "numpy": 768}  # rows of a square matrix
DTYPES = "bfloat16", "float16", "tf32", "float32", "float64"
PASSES: tuple[Pass, ...] = "forward", "backward"
MIN_TIME = 1e-3  # seconds of one measurement: shorter calls are repeated in a row
Track = Callable[[Iterable[Any]], Iterable[Any]]
Constants = Iterator[tuple[str, Constant]]


@dataclass(frozen=True)
class Calibration:
    """Hardware fitted to this machine, the timed calls, and the fitted kernels of each pass."""

    hardware: Hardware
    calls: tuple[Timed, ...]
    kernels: dict[Pass, Kernel]


def calibrate(kind: str = "", quick: bool = False, track: Track = iter) -> Calibration:
    """Measures this machine; `track` may wrap the rounds to show progress.

    `kind` is cuda, cpu or numpy, by default the first that is available. `quick` runs fewer rounds.
    """
    device = bench(kind)
    calls = samples(device)
    runs = [product(device), *(device.prepare(call, device.dtype) for call in calls)]
    product_time, *times = medians(device, runs, ROUNDS[device.kind][quick], track)
    del runs
    timed = tuple(
        Timed(x.pass_, x.rows, x.columns, x.kind, x.heads, x.head_dim, device.dtype, time)
        for x, time in zip(calls, times, strict=True)
    )
    tile = GPU_TILE if device.kind == "cuda" else (1, 1)
    skips: Sequence[tuple[int, int]] = SKIPS if device.kind == "cpu" else (tile,)
    kernels = {pass_: fit_kernel(timed, pass_, tile, skips) for pass_ in PASSES}
    peak = max(flop(device) / product_time, *(kernel.rate for kernel in kernels.values()))
    source = f"measured here, {date.today().isoformat()}, {device.libraries}"
    others = dict(peaks(device, peak, source)) | dict(other_constants(device, source))
    hardware = measured_hardware(device.name, others, source, device.dtype, kernels, tile)
    return Calibration(hardware, timed, kernels)


def medians(
    device: Bench,
    runs: Sequence[Callable[[], object]],
    rounds: int,
    track: Track = iter,
) -> list[float]:
    """Returns the median seconds of each run; runs alternate, so disturbances affect all equally.

    The first call of each run is not counted. `track` may wrap the rounds to show progress.
    """
    repeats = []
    for run in runs:
        run()
        repeats.append(max(1, int(MIN_TIME / max(device.seconds(run, 1), 1e-7))))
    times = [
        [device.seconds(run, n) / n for run, n in zip(runs, repeats, strict=True)]
        for _ in track(range(rounds))
    ]
    result: list[float] = np.median(times, axis=0).tolist()
    return result


def samples(device: Bench) -> list[Sample]:
    """Returns the kernel calls to time."""
    scale, heads = (GPU_SCALE, GPU_HEADS) if device.kind == "cuda" else (1, CPU_HEADS)
    shapes = [(scale * q, scale * kv, "full") for q, kv in FULL_SHAPES]
    shapes += [(scale * n, scale * n, "causal") for n in CAUSAL_SIZES]
    shapes += [(q, kv, "masked") for q, kv in MASKED_SHAPES]
    return [
        Sample(pass_, q, kv, kind, h, d)
        for pass_ in PASSES
        for h, d in heads
        for q, kv, kind in shapes
        if kind in device.kinds
    ]


def product(device: Bench) -> Callable[[], object]:
    """Returns the matrix product that measures the peak for the dtype of the timed calls."""
    return device.multiplying(PRODUCT_SIZES[device.kind], device.dtype)


def flop(device: Bench) -> float:
    """Returns the flop of the matrix product."""
    return 2.0 * PRODUCT_SIZES[device.kind] ** 3


def peaks(device: Bench, peak: float, source: str) -> Constants:
    """Yields the peak of every dtype; `peak` [flop/s] is that of the timed calls.

    On a GPU, matrix products are timed; on a CPU, peaks are proportional to the speed of kernels.
    """
    others = [dtype for dtype in DTYPES if dtype != device.dtype]
    rates = {device.dtype: (peak, "matrix products")}
    if device.kind == "cuda":
        size = PRODUCT_SIZES[device.kind]
        times = medians(device, [device.multiplying(size, dtype) for dtype in others], 5)
        products = zip(others, times, strict=True)
        rates |= {dtype: (flop(device) / time, "matrix products") for dtype, time in products}
    elif device.kind == "cpu":
        method = f"scaled from {device.dtype} by kernel times"
        rates |= {dtype: (peak * speed, method) for dtype, speed in _speeds(device, others)}
    for dtype in DTYPES:
        rate, method = rates.get(dtype, (peak, f"not timed: that of {device.dtype}"))
        yield f"peak.{dtype}", Constant(rate, f"{source}; {method}", dtype in rates)


def _speeds(device: Bench, dtypes: list[str]) -> Iterator[tuple[str, float]]:
    """Yields dtypes that have kernels, with the speed of each relative to `device.dtype`."""
    call = Sample("forward", 1024, 1024, "full", 2, 64)
    for dtype in (d for d in dtypes if d != "tf32"):
        try:
            runs = [device.prepare(call, name) for name in (device.dtype, dtype)]
            own_time, other_time = medians(device, runs, 5)
        except (RuntimeError, TypeError):
            continue
        yield dtype, own_time / other_time


def other_constants(device: Bench, source: str) -> Constants:
    """Yields the constants of memory, merging, the node and its links."""
    runs = [device.copying(COPY_BYTES), device.merging(*MERGE_SHAPES[device.kind])]
    copy_time, merge_time = medians(device, runs, 9)
    bandwidth = 2 * COPY_BYTES / copy_time
    merge = max(1.0, merge_time * bandwidth / _merge_bytes(device))
    yield "attention.merge", Constant(merge, f"{source}; merging as in emitted programs", True)
    yield "memory.bandwidth", Constant(bandwidth, f"{source}; copies, both ways", True)
    yield "memory.capacity", Constant(device.capacity, f"{source}; reported by the system", True)
    yield "node.ranks", Constant(device.ranks, f"{source}; reported by the system", True)
    yield from links(*_messages(device), bandwidth, source)


def _merge_bytes(device: Bench) -> float:
    """Returns the bytes that a fused merge reads and writes, including lse."""
    rows, heads, head_dim = MERGE_SHAPES[device.kind]
    width = 2 if device.dtype == "bfloat16" else 4
    return float(rows * heads * (2 * 4 * (head_dim + 1) + width * head_dim + 4))


def _messages(device: Bench) -> tuple[list[tuple[int, float]], str]:
    """Returns (bytes, seconds) of messages and their description; none without a second rank."""
    if device.kind == "numpy":
        return [], ""
    timing = import_module("ringloom.runtimes.calibration.links")
    if device.kind == "cuda":
        return timing.between_devices(), "copies from one device to the next"
    return timing.between_processes(), "two processes that exchange messages over gloo"


def links(
    messages: list[tuple[int, float]], method: str, copy_bandwidth: float, source: str
) -> Constants:
    """Yields alpha and bandwidth of links, fitted to messages.

    Without messages, the bandwidth is `copy_bandwidth`.
    """
    alpha, bandwidth = 0.0, copy_bandwidth
    note = f"{source}; no second rank: a copy in memory replaces a link"
    if messages:
        fit = fit_link(*zip(*messages, strict=True))
        alpha, bandwidth = fit.constants["alpha"], fit.constants["bandwidth"]
        note = f"{source}; {method}, mean error {fit.mean_error:.0%}"
    for section, text in (("intra", note), ("inter", f"{note}; carried over")):
        is_measured = bool(messages) and section == "intra"
        yield f"{section}.alpha", Constant(alpha, text, is_measured)
        yield f"{section}.bandwidth", Constant(bandwidth, text, is_measured)
