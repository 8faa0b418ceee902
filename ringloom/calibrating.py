"""calibrate()   times this machine's kernels, memory and links, and fits a hardware file to them.

kernel calls      square, wide and tall, causal and masked, both passes; calls alternate
products, copies  the peaks by dtype and the memory's bandwidth
merging           as emitted programs merge partial outputs
messages          between two processes, or two devices
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
FULL = (
    *((64, 64), (256, 256), (1024, 1024), (256, 1024), (1024, 256)),
    *((64, 1024), (1024, 64), (512, 2048), (2048, 512)),
)
CAUSAL = 128, 512, 1024, 1536, 2048
MASKED = (256, 512), (512, 1024), (1024, 2048)
ON_CPU = (1, 64), (4, 64), (2, 128), (4, 32)  # heads, head_dim
ON_GPU = (16, 128), (16, 64), (64, 128)
LARGER = 4  # factor on rows and columns on a GPU
GPU_TILE = 128, 64  # queries and keys of torch's flash kernels, d 128
MERGED = {"cpu": (4096, 8, 64), "cuda": (8192, 32, 128), "numpy": (4096, 8, 64)}  # rows, heads, dim
COPIED = 1 << 27  # bytes
PRODUCT = {"cpu": 768, "cuda": 8192, "numpy": 768}
KINDS = "bfloat16", "float16", "tf32", "float32", "float64"
PASSES: tuple[Pass, ...] = "forward", "backward"
SHORTEST = 1e-3  # seconds of one repeat: shorter calls are repeated in a row
Track = Callable[[Iterable[Any]], Iterable[Any]]
Constants = Iterator[tuple[str, Constant]]


@dataclass(frozen=True)
class Calibration:
    """Hardware fitted to this machine, the timed calls, and the fitted kernels of each pass."""

    hardware: Hardware
    calls: tuple[Timed, ...]
    kernels: dict[Pass, Kernel]


def calibrate(kind: str = "", quick: bool = False, track: Track = iter) -> Calibration:
    """Measures this machine; `track` may wrap the rounds, to show progress.

    `kind` is cuda, cpu or numpy, by default the first one available. `quick` runs fewer rounds.
    """
    on = bench(kind)
    wanted = samples(on)
    runs = [product(on), *(on.prepare(sample, on.dtype) for sample in wanted)]
    multiplied, *seconds = medians(on, runs, ROUNDS[on.kind][quick], track)
    del runs
    calls = tuple(
        Timed(s.pass_, s.rows, s.columns, s.kind, s.heads, s.head_dim, on.dtype, took)
        for s, took in zip(wanted, seconds, strict=True)
    )
    tile = GPU_TILE if on.kind == "cuda" else (1, 1)
    skips: Sequence[tuple[int, int]] = SKIPS if on.kind == "cpu" else (tile,)
    kernels = {pass_: fit_kernel(calls, pass_, tile, skips) for pass_ in PASSES}
    own = max(flop(on) / multiplied, *(kernel.rate for kernel in kernels.values()))
    here = f"measured here, {date.today().isoformat()}, {on.libraries}"
    others = dict(peaks(on, own, here)) | dict(beside_kernels(on, here))
    hardware = measured_hardware(on.name, others, here, on.dtype, kernels, tile)
    return Calibration(hardware, calls, kernels)


def medians(
    on: Bench,
    runs: Sequence[Callable[[], object]],
    rounds: int,
    track: Track = iter,
) -> list[float]:
    """Returns median seconds of one call of each; calls alternate, so a disturbance hits them all.

    The first call of each is not counted. `track` may wrap the rounds, to show progress.
    """
    times = []
    for run in runs:
        run()
        times.append(max(1, int(SHORTEST / max(on.seconds(run, 1), 1e-7))))
    seconds = [
        [on.seconds(run, n) / n for run, n in zip(runs, times, strict=True)]
        for _ in track(range(rounds))
    ]
    middle: list[float] = np.median(seconds, axis=0).tolist()
    return middle


def samples(on: Bench) -> list[Sample]:
    """Returns the kernel calls to time."""
    by, heads = (LARGER, ON_GPU) if on.kind == "cuda" else (1, ON_CPU)
    shapes = [(by * q, by * kv, "full") for q, kv in FULL]
    shapes += [(by * n, by * n, "causal") for n in CAUSAL]
    shapes += [(q, kv, "masked") for q, kv in MASKED]
    return [
        Sample(pass_, q, kv, kind, h, d)
        for pass_ in PASSES
        for h, d in heads
        for q, kv, kind in shapes
        if kind in on.kinds
    ]


def product(on: Bench) -> Callable[[], object]:
    """Returns the matrix product that measures the peak for the dtype of the timed calls."""
    return on.multiplying(PRODUCT[on.kind], on.dtype)


def flop(on: Bench) -> float:
    """Returns the flop of the matrix product."""
    return 2.0 * PRODUCT[on.kind] ** 3


def peaks(on: Bench, own: float, here: str) -> Constants:
    """Yields the peak of every dtype; `own` is that of the timed calls' dtype [flop/s].

    Matrix products are timed on a GPU; on a CPU, peaks are in proportion to the speed of kernels.
    """
    others = [dtype for dtype in KINDS if dtype != on.dtype]
    rates = {on.dtype: (own, "matrix products")}
    if on.kind == "cuda":
        took = medians(on, [on.multiplying(PRODUCT[on.kind], dtype) for dtype in others], 5)
        products = zip(others, took, strict=True)
        rates |= {dtype: (flop(on) / time, "matrix products") for dtype, time in products}
    elif on.kind == "cpu":
        how = f"{on.dtype} by the time of kernels"
        rates |= {dtype: (own * speed, how) for dtype, speed in _speeds(on, others)}
    for dtype in KINDS:
        rate, how = rates.get(dtype, (own, f"as {on.dtype}: not timed"))
        yield f"peak.{dtype}", Constant(rate, f"{here}; {how}", dtype in rates)


def _speeds(on: Bench, dtypes: list[str]) -> Iterator[tuple[str, float]]:
    """Yields dtypes that have kernels, and their speeds relative to `on.dtype`."""
    call = Sample("forward", 1024, 1024, "full", 2, 64)
    for dtype in (d for d in dtypes if d != "tf32"):
        try:
            own, other = medians(on, [on.prepare(call, name) for name in (on.dtype, dtype)], 5)
        except (RuntimeError, TypeError):
            continue
        yield dtype, own / other


def beside_kernels(on: Bench, here: str) -> Constants:
    """Yields the constants of memory, merging, the node and its links."""
    copied, merged = medians(on, [on.copying(COPIED), on.merging(*MERGED[on.kind])], 9)
    bandwidth = 2 * COPIED / copied
    merge = max(1.0, merged * bandwidth / _merge_bytes(on))
    yield "attention.merge", Constant(merge, f"{here}; merging as emitted programs do", True)
    yield "memory.bandwidth", Constant(bandwidth, f"{here}; copies, both ways", True)
    yield "memory.capacity", Constant(on.capacity, f"{here}; by the system", True)
    yield "node.ranks", Constant(on.ranks, f"{here}; by the system", True)
    yield from links(*_messages(on), bandwidth, here)


def _merge_bytes(on: Bench) -> float:
    """Returns the bytes that a fused merge reads and writes, with lse."""
    rows, heads, d = MERGED[on.kind]
    narrow = 2 if on.dtype == "bfloat16" else 4
    return float(rows * heads * (2 * 4 * (d + 1) + narrow * d + 4))


def _messages(on: Bench) -> tuple[list[tuple[int, float]], str]:
    """Returns (bytes, seconds) of messages and their description; none without a second rank."""
    if on.kind == "numpy":
        return [], ""
    timed = import_module("ringloom.runtimes.calibration.links")
    if on.kind == "cuda":
        return timed.between_devices(), "copies from one device to the next"
    return timed.between_processes(), "two processes that exchange messages over gloo"


def links(messages: list[tuple[int, float]], way: str, copies: float, here: str) -> Constants:
    """Yields alpha and bandwidth of links, fitted to messages; without messages, of `copies`."""
    alpha, bandwidth = 0.0, copies
    note = f"{here}; no second rank to send to: a copy in memory stands in for a link"
    if messages:
        fit = fit_link(*zip(*messages, strict=True))
        alpha, bandwidth = fit.constants["alpha"], fit.constants["bandwidth"]
        note = f"{here}; {way}, mean error {fit.mean_error:.0%}"
    for section, source in (("intra", note), ("inter", f"{note}; carried over")):
        known = bool(messages) and section == "intra"
        yield f"{section}.alpha", Constant(alpha, source, known)
        yield f"{section}.bandwidth", Constant(bandwidth, source, known)
