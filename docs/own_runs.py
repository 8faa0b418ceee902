"""Compares runs of emitted programs on our own GPUs with predictions for the kernel that ran.

`benchmarks/gpu_programs.py` runs the kernels and merges of all ranks in turn on one chip, so that
messages cost nothing, and times each rank. It stores its measurements in `benchmarks/results`.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from markdown import Lines, table

from ringloom.planner.analysis.tiles import tiles
from ringloom.planner.planning import plan
from ringloom.planner.plans import Passes, Plans
from ringloom.planner.workload import Workload
from ringloom.reproduce.measured import FLOP
from ringloom.simulator.hardware import Hardware, hardware
from ringloom.simulator.prediction import simulate

RESULTS = Path(__file__).resolve().parents[1] / "benchmarks" / "results"
WORK = Workload(seq=8 * 8192, heads=32, kv_heads=8, head_dim=128, mask="causal")
LIMIT = 0.12
CURVES = {"flash": "fa2", "cuDNN": "cudnn"}  # flash kernels of torch are FlashAttention-2

BUSY = re.compile(r"busy(?: by (\w+))?, (\w+), (\d+) ranks x 8192 tokens, (\w+): slowest / mean")
DENSE = re.compile(r"rate.* over dense attention by (\w+)(?: attention)?, .*, (\w+)")


@dataclass(frozen=True)
class Run:
    """Measured milliseconds of each rank on one chip; with one rank, a call of dense attention."""

    chip: str
    date: str
    kernel: str
    schedule: str
    pass_: Passes
    milliseconds: tuple[float, ...]

    @property
    def on(self) -> Hardware:
        """The chip with the kernel that ran."""
        return hardware(f"{'h200' if 'H200' in self.chip else 'h100'}:{CURVES[self.kernel]}")

    @cached_property
    def predicted(self) -> tuple[float, ...]:
        """The predicted milliseconds in which each rank is busy."""
        plans = Plans.of(plan(self.schedule, WORK, len(self.milliseconds), pass_=self.pass_))
        busy = simulate(plans, self.on, record=False).busy
        return tuple((1e3 * np.asarray(busy)).tolist())

    @property
    def error(self) -> float:
        """The relative error of the sum over all ranks."""
        return sum(self.predicted) / sum(self.milliseconds) - 1


def runs() -> list[Run]:
    """Returns the stored runs, each timed call once."""
    calls = dict[tuple[str, ...], Run]()
    for path in sorted(RESULTS.glob("*.json")):
        kept = json.loads(path.read_text(encoding="utf-8"))
        for number, row in enumerate(kept["rows"]):
            for run in _read(kept["chip"], kept["date"], row):
                busy = len(run.milliseconds) > 1  # of which each row is a run of its own
                name = (str(number),) if busy else map("{:.3f}".format, run.milliseconds)
                calls.setdefault((run.chip, run.kernel, run.pass_, *name), run)
    return list(calls.values())


def _read(chip: str, date: str, row: dict[str, object]) -> Iterator[Run]:
    if match := BUSY.match(str(row["what"])):
        kernel, schedule, _, pass_ = match.groups()
        times: Sequence[float] = row["milliseconds"]  # type: ignore[assignment]
        yield Run(chip, date, kernel or "flash", schedule, pass_, tuple(times))  # type: ignore[arg-type]
    elif match := DENSE.match(str(row["what"])):
        kernel, pass_ = match.groups()
        pairs = tiles(plan("ring", WORK, 1)).total_pairs()
        both = FLOP["forward"] + (FLOP["backward"] if pass_ == "both" else 0)
        rate: float = row["dense_teraflop_per_second"]  # type: ignore[assignment]
        took = both * WORK.head_dim * pairs / rate / 1e9
        yield Run(chip, date, kernel, "ring", pass_, (took,))  # type: ignore[arg-type]


def section() -> Lines:
    """Lists every run with its prediction."""
    every = runs()
    within = sum(abs(run.error) <= LIMIT for run in every)
    yield from (
        "Emitted programs on one GPU that runs all ranks in turn (64k causal tokens, 32:8 heads of",
        "128): the time in milliseconds that ranks are busy, as mean and maximum; and dense",
        "attention in one call. Predictions are for the kernel that ran: flash kernels are",
        f"FlashAttention-2, `{CURVES['flash']}`, and cuDNN's is `{CURVES['cuDNN']}`.",
        f"{within} of {len(every)} are within {LIMIT:.0%}; no constant was fitted to them.",
        "",
    )
    yield from table(
        ("", "kernel", "mean", "ours", "error", "slowest", "ours"),
        (
            (
                f"{run.chip}, {run.date}: {what(run)}",
                run.kernel,
                *(f"{np.mean(times):.2f}" for times in (run.milliseconds, run.predicted)),
                f"{run.error:+.1%}",
                *(f"{max(times):.2f}" for times in (run.milliseconds, run.predicted)),
            )
            for run in every
        ),
    )
    far = [run for run in every if abs(run.error) > LIMIT]
    yield from (
        "Further off: " + "; ".join(f"{run.chip}, {what(run)}, {run.kernel}" for run in far) + ".",
        "The time in excess of a rank's share of dense attention shows the cause: calls on pieces,",
        "and adding their results.",
        "",
    )
    yield from table(
        ("", "kernel", "memory, GB/s", "in excess of the share, ms", "ours"),
        (
            (
                f"{run.chip}: {what(run)}",
                run.kernel,
                f"{run.on['memory.bandwidth'] / 1e9:.0f}",
                *(f"{beside:.2f}" for beside in besides(run, every)),
            )
            for run in every
            if besides(run, every)
        ),
    )
    yield from (
        "The H200 has faster memory, but the excess is as long as on the H100. With flash kernels,",
        "most of it is not the predicted traffic of adding gradients, but backward calls on pieces",
        "that are slower than predicted; those of cuDNN are not. No published row times such calls",
        "of FlashAttention-2 separately, and no constant was fitted to these runs.",
        "",
    )


def besides(run: Run, every: Sequence[Run]) -> tuple[float, ...]:
    """Returns milliseconds in excess of a rank's share of dense attention: measured, predicted."""
    ranks, last = len(run.milliseconds), list[tuple[float, ...]]()
    for dense in every:
        same = (dense.chip, dense.kernel, dense.pass_) == (run.chip, run.kernel, run.pass_)
        if ranks > 1 and same and len(dense.milliseconds) == 1:
            pairs = ((run.milliseconds, dense.milliseconds), (run.predicted, dense.predicted))
            last.append(tuple(float(np.mean(a)) - b[0] / ranks for a, b in pairs))
    return last[-1] if last else ()


def what(run: Run) -> str:
    """Returns a short description of a run."""
    ranks = len(run.milliseconds)
    return f"{run.schedule}, {ranks} ranks, {run.pass_}" if ranks > 1 else f"dense, {run.pass_}"
