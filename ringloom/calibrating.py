"""calibrate()   fits the constants of a hardware file to timings of this machine."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from planner.ir import Pass
from runtimes.calibration.measuring import KINDS, PASSES, Measurement, Track, about, measure
from simulator.hardware import Constant, Hardware
from simulator.hardware.measured import (
    SKIPS,
    Kernel,
    Timed,
    fit_kernel,
    fit_link,
    measured_hardware,
)

GPU_TILE = 128, 64  # queries and keys of torch's flash kernels, d 128


@dataclass(frozen=True)
class Calibration:
    """Hardware fitted to this machine, the timed calls, and the fitted kernels of each pass."""

    hardware: Hardware
    calls: tuple[Timed, ...]
    kernels: dict[Pass, Kernel]


def calibrate(kind: str = "", quick: bool = False, track: Track = iter) -> Calibration:
    """Measure the machine that this runs on; `track` may wrap the rounds, to show progress.

    `kind` is cuda, cpu or numpy, by default the first available. Quick measures less often.
    """
    measured = measure(kind, quick, track)
    calls = tuple(
        Timed(s.pass_, s.rows, s.columns, s.kind, s.heads, s.head_dim, measured.on.dtype, seconds)
        for s, seconds in measured.calls
    )
    tile = GPU_TILE if measured.on.kind == "cuda" else (1, 1)
    skips: Sequence[tuple[int, int]] = SKIPS if measured.on.kind == "cpu" else (tile,)
    kernels = {pass_: fit_kernel(calls, pass_, tile, skips) for pass_ in PASSES}
    own = max(measured.products[measured.on.dtype], *(kernel.rate for kernel in kernels.values()))
    note, dtype, name = about(measured.on), measured.on.dtype, measured.on.name
    others = dict(beside_kernels(measured, own, note))
    hardware = measured_hardware(name, others, note, dtype, kernels, tile)
    return Calibration(hardware, calls, kernels)


def beside_kernels(measured: Measurement, own: float, here: str) -> Iterator[tuple[str, Constant]]:
    """Yields all constants but the kernels'; `own` is the peak of the timed calls' dtype [flop/s].

    Without matrix products of a dtype, its peak is in proportion to the speed of its kernels.
    """
    on, rates = measured.on, measured.products | {measured.on.dtype: own}
    for kind in KINDS:
        speed = measured.speeds.get(kind)
        if kind in rates:
            rate, how = rates[kind], "matrix products"
        elif speed is not None:
            rate, how = own * speed, f"{on.dtype} by the time of kernels"
        else:
            rate, how = own, f"as {on.dtype}: not timed"
        yield f"peak.{kind}", Constant(rate, f"{here}; {how}", kind in rates or speed is not None)
    merge = max(1.0, measured.merge)
    yield "attention.merge", Constant(merge, f"{here}; merging as emitted programs do", True)
    yield "memory.bandwidth", Constant(measured.bandwidth, f"{here}; copies, both ways", True)
    yield "memory.capacity", Constant(on.capacity, f"{here}; by the system", True)
    yield "node.ranks", Constant(on.ranks, f"{here}; by the system", True)
    alpha, bandwidth, note = _link(measured, here)
    linked = bool(measured.messages)
    for section, source in (("intra", note), ("inter", f"{note}; carried over")):
        known = linked and section == "intra"
        yield f"{section}.alpha", Constant(alpha, source, known)
        yield f"{section}.bandwidth", Constant(bandwidth, source, known)


def _link(measured: Measurement, here: str) -> tuple[float, float, str]:
    """Returns alpha, bandwidth, and their source."""
    if not measured.messages:
        note = f"{here}; no second rank to send to: a copy in memory stands in for a link"
        return 0.0, measured.bandwidth, note
    fit = fit_link(*zip(*measured.messages, strict=True))
    note = f"{here}; {measured.link}, mean error {fit.mean_error:.0%}"
    return fit.constants["alpha"], fit.constants["bandwidth"], note
