"""Seconds that rings of 1,024 and of 4,096 ranks take to plan, verify and simulate.

    python benchmarks/bench_scale.py --quick        1,024 ranks, causal and full
    python benchmarks/bench_scale.py                4,096 ranks as well

Each case runs in a fresh process, so its peak memory is its own. Seconds are processor time, which
a busy machine stretches less than the clock on the wall. `plan` is the schedule and all passes,
`verify` one verification of what came out.
"""

import argparse
import json
import resource
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from time import process_time

from rich.console import Console
from rich.table import Table

from planner.planning import PASSES
from planner.schedules.rings.ring import ring
from planner.verify import verify
from planner.workload import Workload
from simulator.prediction import simulate

SEQ = 2**20
STAGES = ("plan", "verify", "simulate")
SECONDS = {  # what a case may take in all
    (1024, "causal"): 3.0,
    (1024, "full"): 3.0,
    (4096, "causal"): 20.0,
    (4096, "full"): 20.0,
}
MEMORY = 2.0  # GB that a case may hold


@dataclass(frozen=True)
class Measured:
    """One case: seconds per stage, rows of the plan, peak memory in GB, the predicted time."""

    ranks: int
    mask: str
    rows: int
    seconds: dict[str, float]
    memory: float
    makespan: float

    @property
    def total(self) -> float:
        return sum(self.seconds.values())

    def misses(self) -> Iterator[str]:
        """Yield the limits of time and memory that were missed."""
        seconds = SECONDS[self.ranks, self.mask]
        if self.total > seconds:
            yield f"{self.ranks} ranks, {self.mask}: {self.total:.2f} s, not {seconds:g} s"
        if self.memory > MEMORY:
            yield f"{self.ranks} ranks, {self.mask}: {self.memory:.2f} GB, not {MEMORY:g} GB"


def measure(ranks: int, mask: str) -> Measured:
    """Run one case in this process."""
    work = Workload(seq=SEQ, mask=mask)
    times = [process_time()]
    planned = reduce(lambda done, rewrite: rewrite(done), PASSES, ring(work, ranks, "forward"))
    times.append(process_time())
    verify(planned)
    times.append(process_time())
    result = simulate(planned, "h100")
    times.append(process_time())
    seconds = {s: b - a for s, a, b in zip(STAGES, times[:-1], times[1:], strict=True)}
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    memory = peak * (1 if sys.platform == "darwin" else 1024) / 1e9
    return Measured(ranks, mask, planned.rows, seconds, memory, result.makespan)


def apart(ranks: int, mask: str) -> Measured:
    """Run one case in a process of its own."""
    case = [sys.executable, __file__, "--case", f"{ranks}:{mask}"]
    done = subprocess.run(case, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{ranks} ranks, {mask}: {done.stderr}")
    return Measured(**json.loads(done.stdout))


def table(rows: list[Measured]) -> Table:
    """Seconds per stage, one line per case."""
    shown = Table(title=f"a ring over {SEQ:,} tokens", box=None, padding=(0, 2, 0, 0))
    for head in ("ranks", "mask", "rows", *STAGES, "in all", "limit", "memory"):
        shown.add_column(head, justify="left" if head == "mask" else "right")
    for row in rows:
        stages = [f"{row.seconds[stage]:.2f} s" for stage in STAGES]
        may = f"{SECONDS[row.ranks, row.mask]:g} s"
        ends = f"{row.total:.2f} s", may, f"{row.memory:.2f} GB"
        shown.add_row(f"{row.ranks:,}", row.mask, f"{row.rows:,}", *stages, *ends)
    return shown


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="1,024 ranks only")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.case:
        ranks, mask = chosen.case.split(":")
        print(json.dumps(vars(measure(int(ranks), mask))))
        return
    sizes = [1024] if chosen.quick else [1024, 4096]
    rows = [apart(ranks, mask) for ranks, mask in SECONDS if ranks in sizes]
    Console().print(table(rows))
    if missed := [line for row in rows for line in row.misses()]:
        raise SystemExit("\n".join(missed))


if __name__ == "__main__":
    main()
