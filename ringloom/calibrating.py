"""calibrate()   fits the constants of a hardware file to timings of this machine."""

from collections.abc import Sequence
from dataclasses import dataclass

from planner.ir import Pass
from runtimes.calibration.measuring import KINDS, PASSES, Measurement, measure
from runtimes.calibration.timing import Track, about
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
        Timed(s.pass_, s.rows, s.columns, s.kind, s.heads, s.head_dim, seconds)
        for s, seconds in measured.calls
    )
    tile = GPU_TILE if measured.on.kind == "cuda" else (1, 1)
    skips: Sequence[tuple[int, int]] = SKIPS if measured.on.kind == "cpu" else (tile,)
    kernels = {pass_: fit_kernel(calls, pass_, tile, skips) for pass_ in PASSES}
    own = max(measured.products[measured.on.dtype], *(kernel.rate for kernel in kernels.values()))
    hardware = measured_hardware(_machine(measured, own), kernels, tile)
    return Calibration(hardware, calls, kernels)


def _machine(measured: Measurement, own: float) -> Machine:
    on = measured.on
    alpha, link, note = _link(measured)
    return Machine(
        name=on.name,
        note=about(on),
        ranks=on.ranks,
        dtype=on.dtype,
        peaks=_peaks(measured, own),
        bandwidth=measured.bandwidth,
        capacity=on.capacity,
        merge=measured.merge,
        alpha=alpha,
        link=link,
        link_note=note,
        linked=bool(measured.messages),
    )


def _peaks(measured: Measurement, own: float) -> dict[str, Peak]:
    """Peaks by dtype of inputs; `own` is that of the timed calls' dtype.

    Without matrix products of a dtype, its peak is in proportion to the speed of its kernels.
    """
    rates = measured.products | {measured.on.dtype: own}
    peaks = {kind: Peak(rate, "matrix products", True) for kind, rate in rates.items()}
    for kind in (k for k in KINDS if k not in peaks):
        speed = measured.speeds.get(kind)
        base = measured.on.dtype
        how = f"as {base}: not timed" if speed is None else f"{base} by the time of kernels"
        peaks[kind] = Peak(own * (speed or 1.0), how, speed is not None)
    return peaks


def _link(measured: Measurement) -> tuple[float, float, str]:
    """Returns alpha, bandwidth, and their source."""
    here = about(measured.on)
    if not measured.messages:
        note = f"{here}; no second rank to send to: a copy in memory stands in for a link"
        return 0.0, measured.bandwidth, note
    fit = fit_link(*zip(*measured.messages, strict=True))
    note = f"{here}; {measured.link}, mean error {fit.mean_error:.0%}"
    return fit.constants["alpha"], fit.constants["bandwidth"], note
