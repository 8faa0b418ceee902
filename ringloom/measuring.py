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
from runtimes.calibration.benches import Bench, Sample
from runtimes.calibration.timing import about, bench, medians
from simulator.hardware import Hardware
from simulator.hardware.fit import fit_link
from simulator.hardware.measured import (
    SKIPS,
    Kernel,
    Machine,
    Peak,
    Timed,
    fit_kernel,
    measured_hardware,
)

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
    runs = [product(on), *(on.prepare(sample, on.dtype) for sample in wanted)]
    multiplied, *seconds = medians(on, runs, rounds, track)
    del runs
    calls = tuple(_timed(s, t) for s, t in zip(wanted, seconds, strict=True))
    tile = GPU_TILE if on.kind == "cuda" else (1, 1)
    skips: Sequence[tuple[int, int]] = SKIPS if on.kind == "cpu" else (tile,)
    passes: tuple[Pass, Pass] = "forward", "backward"
    kernels = {p: fit_kernel(calls, p, tile, skips) for p in passes}
    own = max(flop(on) / multiplied, *(kernel.rate for kernel in kernels.values()))
    return Calibration(measured_hardware(_machine(on, own), kernels, tile), calls, kernels)


def _timed(sample: Sample, seconds: float) -> Timed:
    pass_: Pass = "backward" if sample.pass_ == "backward" else "forward"
    shape = sample.rows, sample.columns, sample.kind, sample.heads, sample.head_dim
    return Timed(pass_, *shape, seconds)


def product(on: Bench) -> Callable[[], object]:
    """The matrix product that is the peak for the dtype of the timed calls."""
    return on.multiplying(PRODUCT[on.kind], on.dtype)


def flop(on: Bench) -> float:
    """Of that product."""
    return 2.0 * PRODUCT[on.kind] ** 3


def _machine(on: Bench, own: float) -> Machine:
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
        peaks=_peaks(on, own),
        bandwidth=bandwidth,
        capacity=on.capacity,
        merge=merged / fused,
        alpha=link[0],
        link=link[1],
        link_note=note,
        linked=linked,
    )


def _peaks(on: Bench, own: float) -> dict[str, Peak]:
    """What matrix products reach, by dtype of their inputs; `own` is known for the timed calls'.

    On a CPU, other dtypes have a peak in proportion to their own kernels, as attention is what
    peaks are for here.
    """
    found = {on.dtype: Peak(own, "matrix products", True)}
    for kind in (k for k in KINDS if k not in found):
        if on.kind == "cuda":
            (seconds,) = medians(on, [on.multiplying(PRODUCT["cuda"], kind)], 5)
            found[kind] = Peak(flop(on) / seconds, "matrix products", True)
            continue
        rate = None if on.kind == "numpy" or kind == "tf32" else _ratio(on, kind)
        how = f"as {on.dtype}: not timed" if rate is None else f"{on.dtype} by the time of kernels"
        found[kind] = Peak(own * (rate or 1.0), how, rate is not None)
    return found


def _ratio(on: Bench, kind: str) -> float | None:
    """How much faster kernels are with another dtype; None where there are none."""
    call = Sample("forward", 1024, 1024, "full", 2, 64)
    try:
        base, other = medians(on, [on.prepare(call, name) for name in (on.dtype, kind)], 5)
    except (RuntimeError, TypeError):
        return None
    return base / other


def _link(on: Bench, bandwidth: float) -> tuple[tuple[float, float], str, bool]:
    """(alpha, bandwidth), where they come from, and whether messages were timed at all."""
    rows, how = [], ""
    if on.kind != "numpy":
        links = import_module("runtimes.calibration.links")
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
