"""Seconds and memory that plans on many ranks take to make, verify and simulate, and their growth.

    python benchmarks/bench_scale.py --quick        1,024 ranks
    python benchmarks/bench_scale.py                4,096 ranks as well
    python benchmarks/bench_scale.py --large        ring and zigzag on 16,384 ranks, nothing else
    python benchmarks/bench_scale.py --schedules ring,usp:ulysses=8

Each pass of each schedule, under a causal mask, runs in a fresh process, so its peak memory is its
own. Seconds are processor time, which a busy machine stretches less than the clock on the wall.
`plan` is the schedule and all passes, `verify` one verification of what came out. `growth` is how
many times longer a case takes than on a quarter of the ranks, over how many times more rows it has:
up to 1 its time is proportional to its rows.
"""

import argparse
import json
import resource
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise, product
from time import process_time

from rich.console import Console
from rich.table import Table

from planner.errors import PlanError
from planner.ir import Pass
from planner.planning import PASSES, find_schedule
from planner.verify import verify
from planner.workload import Workload
from simulator.prediction import simulate

SEQ = 2**20
STAGES = ("plan", "verify", "simulate")
FAST, WIDE = (20.0, 2.0), (60.0, 3.0)  # seconds and GiB that a case may take on 4,096 ranks
QUICK = 0.3  # of these seconds, on 1,024: a guard that holds on a busy machine, too
LIMITS = {
    **dict.fromkeys(("ring", "zigzag", "striped", "burst", "balanced"), FAST),
    **dict.fromkeys(("allgather", "usp:ulysses=8"), WIDE),
}
LARGE = {"ring": (60.0, 4.0), "zigzag": (120.0, 4.0)}  # the same on 16,384 ranks, forward


@dataclass(frozen=True)
class Case:
    """One pass of one schedule, and what it may take."""

    schedule: str
    pass_: Pass
    ranks: int
    seconds: float
    memory: float  # GiB


@dataclass(frozen=True)
class Measured:
    """One case: seconds per stage, rows of the plan, peak memory in GiB, the predicted time.

    `refused` says why there is no such plan.
    """

    rows: int = 0
    seconds: tuple[float, ...] = (0.0,) * len(STAGES)
    memory: float = 0.0
    makespan: float = 0.0
    refused: str = ""

    @property
    def total(self) -> float:
        return sum(self.seconds)

    def misses(self, case: Case) -> Iterator[str]:
        """Yield the limits of time and memory that were missed."""
        name = f"{case.schedule} {case.pass_}, {case.ranks} ranks"
        if self.refused:
            yield f"{name}: {self.refused}"
        if self.total > case.seconds:
            yield f"{name}: {self.total:.1f} s, not {case.seconds:g} s"
        if self.memory > case.memory:
            yield f"{name}: {self.memory:.2f} GiB, not {case.memory:g} GiB"


def cases(quick: bool, large: bool, schedules: list[str]) -> Iterator[Case]:
    """Yield every case, small ones first."""
    if large:
        for name in LARGE.keys() & schedules:
            yield Case(name, "forward", 16384, *LARGE[name])
        return
    passes: tuple[Pass, ...] = ("forward", "backward")
    for ranks in [1024] if quick else [1024, 4096]:
        for name, pass_ in product(schedules, passes):
            seconds, memory = LIMITS[name]
            yield Case(name, pass_, ranks, seconds if ranks > 1024 else seconds * QUICK, memory)


def measure(case: Case) -> Measured:
    """Run one case in this process."""
    work = Workload(seq=SEQ, mask="causal")
    recipe, parameters = find_schedule(case.schedule)
    times = [process_time()]
    try:
        built = recipe.build(work, case.ranks, case.pass_, **parameters)
    except PlanError as error:
        return Measured(refused=str(error))
    planned = reduce(lambda done, rewrite: rewrite(done), PASSES, built)
    times.append(process_time())
    verify(planned)
    times.append(process_time())
    result = simulate(planned, "h100")
    times.append(process_time())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    memory = peak * (1 if sys.platform == "darwin" else 1024) / 2**30
    seconds = tuple(after - before for before, after in pairwise(times))
    return Measured(planned.rows, seconds, memory, result.makespan)


def apart(case: Case) -> Measured:
    """Run one case in a process of its own."""
    command = [sys.executable, __file__, "--case", json.dumps(vars(case))]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        return Measured(refused=done.stderr.strip()[-200:] or f"ended by signal {-done.returncode}")
    return Measured(**json.loads(done.stdout))


def table(results: dict[Case, Measured]) -> Table:
    """Seconds per stage, one line per case."""
    shown = Table(title=f"causal, {SEQ:,} tokens", box=None, padding=(0, 2, 0, 0))
    heads = "schedule", "pass", "ranks", "rows", *STAGES, "in all", "limit", "memory", "growth"
    for head in heads:
        shown.add_column(head, justify="left" if head in ("schedule", "pass") else "right")
    for case, result in results.items():
        stages = [f"{seconds:.2f} s" for seconds in result.seconds]
        quarter = case.schedule, case.pass_, case.ranks // 4
        less = next(
            (results[c] for c in results if (c.schedule, c.pass_, c.ranks) == quarter), None
        )
        ends = f"{result.total:.2f} s", f"{case.seconds:g} s", f"{result.memory:.2f} GiB"
        growth = (
            f"{result.total / less.total * less.rows / result.rows:.2f}"
            if less and result.rows
            else ""
        )
        names = case.schedule, case.pass_, f"{case.ranks:,}", f"{result.rows:,}"
        shown.add_row(*names, *stages, *ends, growth)
    return shown


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="1,024 ranks only")
    parser.add_argument("--large", action="store_true", help="16,384 ranks only")
    parser.add_argument("--schedules", default=",".join(LIMITS), help="which of them")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.case:
        print(json.dumps(vars(measure(Case(**json.loads(chosen.case))))))
        return
    wanted = cases(chosen.quick, chosen.large, chosen.schedules.split(","))
    results = {case: apart(case) for case in wanted}
    Console(width=140).print(table(results))
    missed = [line for case, result in results.items() for line in result.misses(case)]
    if missed:
        raise SystemExit("\n".join(missed))


if __name__ == "__main__":
    main()
