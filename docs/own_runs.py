"""Compares runs of emitted programs on our own GPUs with predictions for the same kernels.

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

BUSY_ROW = re.compile(
    r"busy(?: by (\w+))?, (\w+), (\d+) ranks x 8192 tokens, (\w+): slowest / mean"
)
DENSE_ROW = re.compile(r"rate.* over dense attention by (\w+)(?: attention)?, .*, (\w+)")


@dataclass(frozen=True)
class Run:
    """The measured milliseconds of each rank on one chip; a single rank is dense attention."""

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
        file = json.loads(path.read_text(encoding="utf-8"))
        for number, row in enumerate(file["rows"]):
            for run in _read_runs(file["chip"], file["date"], row):
                has_ranks = len(run.milliseconds) > 1  # each row is then a separate run
                name = (str(number),) if has_ranks else map("{:.3f}".format, run.milliseconds)
                calls.setdefault((run.chip, run.kernel, run.pass_, *name), run)
    return list(calls.values())


def _read_runs(chip: str, date: str, row: dict[str, object]) -> Iterator[Run]:
    if match := BUSY_ROW.match(str(row["what"])):
        kernel, schedule, _, pass_ = match.groups()
        times: Sequence[float] = row["milliseconds"]  # type: ignore[assignment]
        yield Run(chip, date, kernel or "flash", schedule, pass_, tuple(times))  # type: ignore[arg-type]
    elif match := DENSE_ROW.match(str(row["what"])):
        kernel, pass_ = match.groups()
        pairs = tiles(plan("ring", WORK, 1)).total_pairs()
        flop = FLOP["forward"] + (FLOP["backward"] if pass_ == "both" else 0)
        rate: float = row["dense_teraflop_per_second"]  # type: ignore[assignment]
        time = flop * WORK.head_dim * pairs / rate / 1e9
        yield Run(chip, date, kernel, "ring", pass_, (time,))  # type: ignore[arg-type]


def section() -> Lines:
    """Lists every run with its prediction."""
    all_runs = runs()
    within = sum(abs(run.error) <= LIMIT for run in all_runs)
    yield from (
        "Here one GPU runs all ranks of an emitted program in turn (64k causal tokens, 32:8 heads",
        "of 128). The table lists the mean and the maximum time in milliseconds that ranks are",
        "busy, and the time of dense attention in one call. Predictions are for the kernel that",
        f"ran: `{CURVES['flash']}` (FlashAttention-2) for flash kernels, `{CURVES['cuDNN']}` for",
        f"cuDNN's. {within} of {len(all_runs)} predictions are within {LIMIT:.0%}; no constant was",
        "fitted to these runs.",
        "",
    )
    yield from table(
        ("", "kernel", "mean", "ours", "error", "slowest", "ours"),
        (
            (
                f"{run.chip}, {run.date}: {describe(run)}",
                run.kernel,
                *(f"{np.mean(times):.2f}" for times in (run.milliseconds, run.predicted)),
                f"{run.error:+.1%}",
                *(f"{max(times):.2f}" for times in (run.milliseconds, run.predicted)),
            )
            for run in all_runs
        ),
    )
    far_runs = [run for run in all_runs if abs(run.error) > LIMIT]
    yield from (
        "Runs with larger errors: "
        + "; ".join(f"{run.chip}, {describe(run)}, {run.kernel}" for run in far_runs)
        + ".",
        "The next table lists the time in excess of a rank's share of dense attention. Calls on",
        "pieces, and adding their results, take this time.",
        "",
    )
    yield from table(
        ("", "kernel", "memory, GB/s", "in excess of the share, ms", "ours"),
        (
            (
                f"{run.chip}: {describe(run)}",
                run.kernel,
                f"{run.on['memory.bandwidth'] / 1e9:.0f}",
                *(f"{excess:.2f}" for excess in excess_times(run, all_runs)),
            )
            for run in all_runs
            if excess_times(run, all_runs)
        ),
    )
    yield from (
        "The H200 has faster memory, but its excess is as long as that of the H100. With flash",
        "kernels, most of this excess is not the predicted traffic of adding gradients, but",
        "backward calls on pieces that are slower than predicted; backward calls of cuDNN are not.",
        "No published row times such calls of FlashAttention-2 separately.",
        "",
    )


def excess_times(run: Run, all_runs: Sequence[Run]) -> tuple[float, ...]:
    """Returns milliseconds in excess of a rank's share of dense attention: measured, predicted."""
    ranks, excess = len(run.milliseconds), list[tuple[float, ...]]()
    for dense in all_runs:
        matches = (dense.chip, dense.kernel, dense.pass_) == (run.chip, run.kernel, run.pass_)
        if ranks > 1 and matches and len(dense.milliseconds) == 1:
            pairs = ((run.milliseconds, dense.milliseconds), (run.predicted, dense.predicted))
            excess.append(tuple(float(np.mean(a)) - b[0] / ranks for a, b in pairs))
    return excess[-1] if excess else ()


def describe(run: Run) -> str:
    """Returns a short description of a run."""
    ranks = len(run.milliseconds)
    return f"{run.schedule}, {ranks} ranks, {run.pass_}" if ranks > 1 else f"dense, {run.pass_}"
