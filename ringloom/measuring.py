"""calibrate()   time this machine's kernels, memory and links, and make a hardware file of it.

kernel calls      square, wide and tall, causal and masked, both passes; all taking turns
products, copies  the peaks by dtype and the memory's bandwidth
merging           as emitted programs merge partial outputs
messages          between two processes, or two devices
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from planner.ir import Pass
from runtimes.calibration import Bench, Sample, about, bench, medians
from simulator.fitting import fit_link
from simulator.hardware import Hardware
from simulator.measured import SKIPS, Kernel, Machine, Timed, fit_kernel, measured_hardware

Track = Callable[[Iterable[Any]], Iterable[Any]]
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
GPU_TILE = 128, 64  # queries and keys of torch's flash kernels, d 128
MERGED = 4096, 8, 64  # rows, heads, head_dim
COPIED = 1 << 27  # bytes
PRODUCT = {"cpu": 768, "cuda": 8192, "numpy": 768}
KINDS = "bfloat16", "float16", "tf32", "float32", "float64"


@dataclass(frozen=True)
class Calibration:
    """What was found, with what was timed and how well the constants tell it."""

    hardware: Hardware
    calls: tuple[Timed, ...]
    kernels: dict[Pass, Kernel]


def samples(on: Bench) -> list[Sample]:
    """The kernel calls that are timed."""
    by, heads = (LARGER, ON_GPU) if on.kind == "cuda" else (1, ON_CPU)
    shapes = [(by * q, by * kv, "full") for q, kv in FULL]
    shapes += [(by * n, by * n, "causal") for n in CAUSAL]
    shapes += [(q, kv, "masked") for q, kv in MASKED]
    return [
        Sample(pass_, q, kv, kind, h, d)
        for pass_ in ("forward", "backward")
        for h, d in heads
        for q, kv, kind in shapes
        if kind in on.kinds
    ]


def calibrate(kind: str = "", quick: bool = False, track: Track = iter) -> Calibration:
    """Measure the machine that this runs on; `track` may wrap the rounds, to show progress.

    `kind` is cuda, cpu or numpy, by default the first that is there. Quick measures less often.
    """
    on = bench(kind)
    rounds = ROUNDS[on.kind][quick]
    wanted = samples(on)
    runs = [on.prepare(sample, on.dtype) for sample in wanted]
    seconds = medians(on, runs, rounds, track)
    del runs
    calls = tuple(_timed(s, t) for s, t in zip(wanted, seconds, strict=True))
    tile = GPU_TILE if on.kind == "cuda" else (1, 1)
    skips: Sequence[tuple[int, int]] = SKIPS if on.kind == "cpu" else (tile,)
    passes: tuple[Pass, Pass] = "forward", "backward"
    kernels = {p: fit_kernel(calls, p, tile, skips) for p in passes}
    return Calibration(measured_hardware(_machine(on, kernels), kernels, tile), calls, kernels)


def _timed(sample: Sample, seconds: float) -> Timed:
    pass_: Pass = "backward" if sample.pass_ == "backward" else "forward"
    shape = sample.rows, sample.columns, sample.kind, sample.heads, sample.head_dim
    return Timed(pass_, *shape, seconds)


def _machine(on: Bench, kernels: dict[Pass, Kernel]) -> Machine:
    copied, merged = medians(on, [on.copying(COPIED), on.merging(*MERGED)], 9)
    bandwidth = 2 * COPIED / copied
    rows, heads, d = MERGED
    narrow = 2 if on.dtype == "bfloat16" else 4
    fused = rows * heads * (2 * 4 * (d + 1) + narrow * d + 4) / bandwidth
    link, note, linked = _link(on, bandwidth)
    return Machine(
        name=on.name,
        note=about(on),
        ranks=on.ranks,
        dtype=on.dtype,
        peaks=_peaks(on, max(kernel.rate for kernel in kernels.values())),
        bandwidth=bandwidth,
        capacity=on.capacity,
        merge=merged / fused,
        alpha=link[0],
        link=link[1],
        link_note=note,
        linked=linked,
    )


def _peaks(on: Bench, least: float) -> dict[str, float]:
    """flop/s of products, by dtype; on a CPU those of others than the timed kernels' dtype are in
    the proportion of their kernels, as attention is what they are for."""
    size = PRODUCT[on.kind]
    found = {kind: _rate(on, kind, size) for kind in KINDS if on.kind == "cuda" or kind == on.dtype}
    found[on.dtype] = max(found[on.dtype], least)
    call = Sample("forward", 1024, 1024, "full", 2, 64)
    for kind in (k for k in KINDS if k not in found):
        as_timed = "float32" if kind == "tf32" else kind
        try:
            both = [on.prepare(call, name) for name in (on.dtype, as_timed)]
            base, other = medians(on, both, 5)
            found[kind] = found[on.dtype] * base / other
        except (RuntimeError, TypeError):  # no kernel for this dtype here
            found[kind] = found[on.dtype]
    return found


def _rate(on: Bench, kind: str, size: int) -> float:
    (seconds,) = medians(on, [on.multiplying(size, kind)], 5)
    return 2.0 * size**3 / seconds


def _link(on: Bench, bandwidth: float) -> tuple[tuple[float, float], str, bool]:
    """(alpha, bandwidth), where they come from, and whether messages were timed at all."""
    rows, how = [], ""
    if on.kind != "numpy":
        links = import_module("runtimes.calibration_links")
        if on.kind == "cuda":
            rows, how = links.between_devices(), "copies from one device to the next"
        else:
            rows, how = links.between_processes(), "two processes that exchange messages over gloo"
    if not rows:
        note = f"{about(on)}; no second rank to send to: a copy in memory stands in for a link"
        return (0.0, bandwidth), note, False
    found = fit_link(*zip(*rows, strict=True))
    note = f"{about(on)}; {how}, mean error {found.mean_error:.0%}"
    return (found.constants["alpha"], found.constants["bandwidth"]), note, True
