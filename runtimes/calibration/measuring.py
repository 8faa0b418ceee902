"""measure()   times this machine's kernels, memory and links.

kernel calls      square, wide and tall, causal and masked, both passes; calls alternate
products, copies  the peaks by dtype and the memory's bandwidth
merging           as emitted programs merge partial outputs
messages          between two processes, or two devices
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import date
from importlib import import_module
from typing import Any

import numpy as np

from planner.ir import Pass
from runtimes.calibration.benches import Bench, Sample, bench

ROUNDS = {"cpu": (31, 9), "cuda": (9, 5), "numpy": (9, 3)}  # full, quick
FULL = (
    *((64, 64), (256, 256), (1024, 1024), (256, 1024), (1024, 256)),
    *((64, 1024), (1024, 64), (512, 2048), (2048, 512)),
)
CAUSAL = 128, 512, 1024, 1536, 2048
MASKED = (256, 512), (512, 1024)
ON_CPU = (1, 64), (4, 64), (2, 128), (4, 32)  # heads, head_dim
ON_GPU = (16, 128), (16, 64), (64, 128)
LARGER = 4  # times as many rows and columns on a GPU
MERGED = {"cpu": (4096, 8, 64), "cuda": (8192, 32, 128), "numpy": (4096, 8, 64)}  # rows, heads, dim
COPIED = 1 << 27  # bytes
PRODUCT = {"cpu": 768, "cuda": 8192, "numpy": 768}
KINDS = "bfloat16", "float16", "tf32", "float32", "float64"
PASSES: tuple[Pass, ...] = "forward", "backward"
SHORTEST = 1e-3  # seconds of one repeat: shorter calls are made several times in a row
Track = Callable[[Iterable[Any]], Iterable[Any]]


@dataclass(frozen=True)
class Measurement:
    """Times of one machine, before any constant is fitted to them.

    `messages` holds (bytes, seconds), and is empty where there is no second rank.
    """

    on: Bench
    calls: tuple[tuple[Sample, float], ...]  # seconds of each kernel call
    products: dict[str, float]  # flop/s of matrix products, by dtype
    speeds: dict[str, float]  # of kernels of other dtypes, relative to those of `on.dtype`
    bandwidth: float  # bytes/s of a copy, both ways
    merge: float  # time of a merge relative to that of its traffic
    messages: list[tuple[int, float]]
    link: str  # how messages were exchanged


def measure(kind: str, quick: bool, track: Track) -> Measurement:
    """Time the machine that this runs on; `kind` is cuda, cpu or numpy, "" for the first available.

    `quick` measures less often; `track` may wrap the rounds, to show progress.
    """
    on = bench(kind)
    wanted = samples(on)
    runs = [product(on), *(on.prepare(sample, on.dtype) for sample in wanted)]
    multiplied, *seconds = medians(on, runs, ROUNDS[on.kind][quick], track)
    del runs
    copied, merged = medians(on, [on.copying(COPIED), on.merging(*MERGED[on.kind])], 9)
    bandwidth = 2 * COPIED / copied
    messages, link = _messages(on)
    others = [dtype for dtype in KINDS if dtype != on.dtype]
    dtypes = others if on.kind == "cuda" else []
    took = medians(on, [on.multiplying(PRODUCT[on.kind], dtype) for dtype in dtypes], 5)
    products = zip((on.dtype, *dtypes), (multiplied, *took), strict=True)
    return Measurement(
        on,
        tuple(zip(wanted, seconds, strict=True)),
        {dtype: flop(on) / time for dtype, time in products},
        _speeds(on, others) if on.kind == "cpu" else {},
        bandwidth,
        merged * bandwidth / _merge_bytes(on),
        messages,
        link,
    )


def medians(
    on: Bench,
    runs: Sequence[Callable[[], object]],
    rounds: int,
    track: Track = iter,
) -> list[float]:
    """Returns median seconds of one call of each; calls alternate, so a disturbance hits them all.

    First calls, which set things up, are not counted. `track` may wrap the rounds, to show
    progress.
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


def about(on: Bench) -> str:
    """Returns the source of measurements: "measured here, 2026-01-31, torch 2.13.0"."""
    return f"measured here, {date.today().isoformat()}, {on.libraries}"


def samples(on: Bench) -> list[Sample]:
    """Returns the kernel calls that are timed."""
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
    """Returns the matrix product that is the peak for the dtype of the timed calls."""
    return on.multiplying(PRODUCT[on.kind], on.dtype)


def flop(on: Bench) -> float:
    """Returns the flop of that product."""
    return 2.0 * PRODUCT[on.kind] ** 3


def _merge_bytes(on: Bench) -> float:
    """Bytes that a fused merge reads and writes: accumulator and partial output, with lse."""
    rows, heads, d = MERGED[on.kind]
    narrow = 2 if on.dtype == "bfloat16" else 4
    return float(rows * heads * (2 * 4 * (d + 1) + narrow * d + 4))


def _speeds(on: Bench, dtypes: list[str]) -> dict[str, float]:
    """Speeds of kernels of other dtypes relative to `on.dtype`, where there are such kernels."""
    call, speeds = Sample("forward", 1024, 1024, "full", 2, 64), dict[str, float]()
    for dtype in (d for d in dtypes if d != "tf32"):
        try:
            own, other = medians(on, [on.prepare(call, name) for name in (on.dtype, dtype)], 5)
        except (RuntimeError, TypeError):
            continue
        speeds[dtype] = own / other
    return speeds


def _messages(on: Bench) -> tuple[list[tuple[int, float]], str]:
    """Returns (bytes, seconds) of messages, none where there is no second rank, and their way."""
    if on.kind == "numpy":
        return [], ""
    links = import_module("runtimes.calibration.links")
    if on.kind == "cuda":
        return links.between_devices(), "copies from one device to the next"
    return links.between_processes(), "two processes that exchange messages over gloo"
