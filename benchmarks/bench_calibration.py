"""Errors of predicted kernel calls on a calibrated machine: 20 mixed plans, one rank of each.

    python benchmarks/bench_calibration.py [--quick] [--hardware FILE] [--json]

Calibrates this machine (unless given a file that `ringloom calibrate` wrote), makes plans over
schedules, masks, sizes and both passes, runs all kernel calls of one rank of each in their order,
with the kernels that emitted programs call, and compares their time with the predicted one. Exits 1
if the median error is more than 10%.

A matrix product, timed in turn with the calls here and there, tells how much slower or faster the
machine has become since it was calibrated, as machines that others use do; predictions are for the
machine as it is now. The table says by how much that is.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random

import numpy as np
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from ringloom.calibrating import calibrate, flop, medians, product
from ringloom.planner.ir import Pass, Plan
from ringloom.planner.kernel_calls import Call
from ringloom.planner.masks import Causal, Documents, Full, Mask, Prefix, Window
from ringloom.planner.planning import plan
from ringloom.planner.workload import Workload
from ringloom.runtimes.calibration.benches import Bench, Sample, bench
from ringloom.simulator.costs.prices import Costs
from ringloom.simulator.hardware import Hardware, hardware

SCHEDULES = (
    *("ring", "striped", "zigzag", "balanced", "burst", "allgather", "ulysses", "usp"),
    *("striped:grain=64", "usp:ulysses=2:ring=2"),
)
SHAPES = (8, 64), (4, 128), (8, 32), (2, 64)  # heads, head_dim
ALLOWED = 0.10  # median error
ROUNDS = 11, 1


@dataclass(frozen=True)
class Trial:
    """One rank of one plan."""

    plan: Plan
    rank: int

    @property
    def name(self) -> str:
        work = self.plan.workload
        mask = str(work.mask)
        mask = mask if len(mask) < 20 else f"{mask[:17]}..."
        shape = f"{work.heads}x{work.head_dim}"
        return f"{self.plan.name} {self.plan.pass_} {work.seq} {mask} {shape} rank {self.rank}"


def trials(count: int, seed: int = 0) -> Iterator[Trial]:
    """Mixed plans; every schedule as often as any other."""
    random = Random(seed)
    for n in range(count):
        name, pass_ = SCHEDULES[n % len(SCHEDULES)], ("forward", "backward")[n // 2 % 2]
        ranks = 4 if ":ring" in name else random.choice((2, 4, 8))
        seq = random.choice((2048, 3000, 4096, 6144, 8192))
        heads, head_dim = random.choice(SHAPES)
        work = Workload(
            seq=seq,
            heads=heads,
            head_dim=head_dim,
            kv_heads=random.choice((heads, heads // 2)),
            mask=_mask(random, seq),
            dtype="float32",
        )
        made = plan(name, work, ranks, pass_=_pass(pass_))
        yield Trial(made, random.randrange(ranks))


def _pass(name: str) -> Pass:
    return "backward" if name == "backward" else "forward"


def _mask(random: Random, seq: int) -> Mask:
    third = seq // 3
    masks = Full(), Window(seq // 4), Documents((third, seq - third)), Prefix(seq // 8)
    return random.choice((Causal(), Causal(), Causal(), *masks))


def calls_of(trial: Trial, costs: Costs) -> Iterator[tuple[Call, int]]:
    """Yield the rank's kernel calls in plan order, each with its query heads."""
    for _, node in trial.plan.attends():
        heads = costs.rectangles.tiles.heads(node)
        for row in np.flatnonzero(node.rank == trial.rank):
            for call in costs.rectangles.calls(node.q[row], node.kv[row]):
                yield call, int(heads[row])


def predicted(trial: Trial, machine: Hardware) -> float:
    """Seconds of the rank's kernel calls."""
    costs = Costs(trial.plan, machine)
    return sum(costs.kernels.seconds(call, heads) for call, heads in calls_of(trial, costs))


KINDS = {"window": "masked"}  # benches time windows under an explicit mask


def runner(trial: Trial, machine: Hardware, on: Bench) -> Callable[[], object]:
    """A function that makes the rank's kernel calls in order."""
    work = trial.plan.workload

    @cache
    def made(rows: int, columns: int, kind: str, heads: int) -> Callable[[], object]:
        kv_heads = -(-heads // work.group)
        shape = heads, work.head_dim, kv_heads if heads % kv_heads == 0 else heads
        return on.prepare(Sample(trial.plan.pass_, rows, columns, kind, *shape), work.dtype)

    calls = [
        made(len(call.rows), len(call.columns), KINDS.get(call.kind, call.kind), heads)
        for call, heads in calls_of(trial, Costs(trial.plan, machine))
    ]

    def run() -> None:
        for call in calls:
            call()

    return run


def main() -> int:
    """Print a table, or one JSON object; 1 if predictions are off."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--quick", action="store_true", help="four plans, not calibrated: it runs, no more"
    )
    parser.add_argument("--hardware", type=Path, help="a file that `ringloom calibrate` wrote")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    options = parser.parse_args()
    known = options.hardware or ("h100" if options.quick else "")
    machine = hardware(known) if known else calibrate("cpu").hardware
    tried = list(trials(4 if options.quick else 20))
    on = bench("cpu")
    told = np.array([predicted(trial, machine) for trial in tried])
    runs = [product(on), *(runner(trial, machine, on) for trial in tried)]
    multiplied, *seconds = medians(on, runs, ROUNDS[options.quick])
    took, speed = np.array(seconds), flop(on) / multiplied / machine.peak(on.dtype)
    told /= speed
    errors = told / took - 1
    median = float(np.median(np.abs(errors)))
    table = Table("plan", "predicted", "measured", "error", box=None)
    for trial, a, b, error in zip(tried, told, took, errors, strict=True):
        table.add_row(trial.name, f"{a * 1e3:.1f} ms", f"{b * 1e3:.1f} ms", f"{error:+.1%}")
    if options.json:
        rows = [
            {"plan": t.name, "predicted_s": a, "measured_s": b}
            for t, a, b in zip(tried, told.tolist(), took.tolist(), strict=True)
        ]
        print(json.dumps({"median_error": median, "speed": speed, "rows": rows}))
    else:
        now = f"products run at {speed:.0%} of the speed they were calibrated at"
        Console().print(table, f"median error {median:.1%}, allowed {ALLOWED:.0%}; {now}")
    return int(median > ALLOWED and not options.quick)  # a short run is no verdict


if __name__ == "__main__":
    sys.exit(main())
