"""Times the operations of attention on this machine: kernel calls, merges, copies, products.

A bench times one thing at a time: torch on a CUDA device, torch on one CPU core, or numpy where
torch is not installed. CPU times are those of the thread, which other processes hardly disturb.
"""

from collections.abc import Callable, Iterable, Sequence
from datetime import date
from importlib import import_module, util
from typing import Any

import numpy as np

from runtimes.calibration.benches import Bench
from runtimes.calibration.numpy_bench import NumpyBench

Track = Callable[[Iterable[Any]], Iterable[Any]]
SHORTEST = 1e-3  # seconds of one repeat: shorter calls are made several times in a row


def bench(kind: str = "") -> Bench:
    """Returns the bench of a kind, "cuda", "cpu" or "numpy", by default the first available."""
    if not kind:
        kind = "numpy"
        if util.find_spec("torch") is not None:
            kind = "cuda" if import_module("torch").cuda.is_available() else "cpu"
    if kind == "numpy":
        device: Bench = NumpyBench()
    else:
        device = import_module("runtimes.calibration.torch_bench").TorchBench(kind)
    return device


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
