"""Seconds and memory that plans on many ranks take to make, verify and simulate, and their growth.

    python benchmarks/bench_scale.py --quick        1,024 ranks
    python benchmarks/bench_scale.py                4,096 ranks as well
    python benchmarks/bench_scale.py --large        ring and zigzag on 16,384 ranks, nothing else
    python benchmarks/bench_scale.py --schedules ring,usp:ulysses=8

Rows go to benchmarks/results/scale.csv as they are measured, and those that stand there for the
same sources are not measured again, unless it is --quick: an interrupted run goes on where it was.

Each pass of each schedule, under a causal mask, runs in a fresh process, so its peak memory is its
own. Seconds are processor time, which a busy machine stretches less than the clock on the wall.
`plan` is the schedule and all passes, `verify` one verification of what came out. `growth` is how
many times longer a case takes than on a quarter of the ranks, over how many times more rows it has:
up to 1 its time is proportional to its rows.
"""

import argparse
import csv
import hashlib
import json
import resource
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import reduce
from itertools import pairwise, product
from pathlib import Path
from time import process_time

from rich.console import Console
from rich.table import Table

from ringloom.planner.errors import PlanError
from ringloom.planner.ir import Pass
from ringloom.planner.planning import DEFAULT_PASSES, find_schedule
from ringloom.planner.verify import verify
from ringloom.planner.workload import Workload
from ringloom.simulator.prediction import simulate

SEQ = 2**20
STAGES = ("plan", "verify", "simulate")
FAST, WIDE = (20.0, 2.0), (60.0, 3.0)  # seconds and GiB that a case may take on 4,096 ranks
QUICK = 0.3  # of these seconds, on 1,024: a guard that holds on a busy machine, too
LIMITS = {
    **dict.fromkeys(("ring", "zigzag", "striped", "burst", "balanced"), FAST),
    **dict.fromkeys(("allgather", "usp:ulysses=8"), WIDE),
}
LARGE = {"ring": (60.0, 4.0), "zigzag": (120.0, 4.0)}  # the same on 16,384 ranks, forward


RESULTS = Path(__file__).parent / "results" / "scale.csv"


@dataclass(frozen=True)
class Case:
    """One pass of one schedule."""

    schedule: str
    pass_: Pass
    ranks: int

    @property
    def limits(self) -> tuple[float, float]:
        """The seconds and GiB that it may take."""
        if self.ranks > 4096:
            return LARGE[self.schedule]
        seconds, memory = LIMITS[self.schedule]
        return (seconds, memory) if self.ranks > 1024 else (seconds * QUICK, memory)


@dataclass(frozen=True)
class Measured:
    """One case: rows of the plan, seconds per stage, peak memory in GiB.

    `refused` says why there is no such plan.
    """

    rows: int = 0
    plan: float = 0.0
    verify: float = 0.0
    simulate: float = 0.0
    memory: float = 0.0
    refused: str = ""

    @property
    def stages(self) -> tuple[float, ...]:
        return self.plan, self.verify, self.simulate

    def misses(self, case: Case) -> Iterator[str]:
        """Yield the limits of time and memory that were missed."""
        name, (seconds, memory) = f"{case.schedule} {case.pass_}, {case.ranks} ranks", case.limits
        if self.refused:
            yield f"{name}: {self.refused}"
        if sum(self.stages) > seconds:
            yield f"{name}: {sum(self.stages):.1f} s, not {seconds:g} s"
        if self.memory > memory:
            yield f"{name}: {self.memory:.2f} GiB, not {memory:g} GiB"


def cases(quick: bool, large: bool, schedules: list[str]) -> Iterator[Case]:
    """Yield every case, small ones first."""
    if large:
        yield from (Case(name, "forward", 16384) for name in LARGE if name in schedules)
        return
    passes: tuple[Pass, ...] = ("forward", "backward")
    for ranks in [1024] if quick else [1024, 4096]:
        for name, pass_ in product(schedules, passes):
            yield Case(name, pass_, ranks)


def measure(case: Case) -> Measured:
    """Run one case in this process."""
    work = Workload(seq=SEQ, mask="causal")
    recipe, parameters = find_schedule(case.schedule)
    times = [process_time()]
    try:
        built = recipe.build(work, case.ranks, case.pass_, **parameters)
    except PlanError as error:
        return Measured(refused=str(error))
    planned = reduce(lambda done, rewrite: rewrite(done), DEFAULT_PASSES, built)
    times.append(process_time())
    verify(planned)
    times.append(process_time())
    simulate(planned, "h100")
    times.append(process_time())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    memory = peak * (1 if sys.platform == "darwin" else 1024) / 2**30
    return Measured(planned.rows, *(after - before for before, after in pairwise(times)), memory)


def apart(case: Case) -> Measured:
    """Run one case in a process of its own."""
    command = [sys.executable, __file__, "--case", json.dumps(vars(case))]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        return Measured(refused=done.stderr.strip()[-200:] or f"ended by signal {-done.returncode}")
    return Measured(**json.loads(done.stdout))


# ---- rows that were measured before


def version() -> str:
    """The digest of all sources that a row depends on."""
    root, text = Path(__file__).parents[1], hashlib.sha256(Path(__file__).read_bytes())
    for path in sorted(p for name in ("planner", "simulator") for p in (root / name).rglob("*.py")):
        text.update(path.read_bytes())
    return text.hexdigest()[:12]


def read(sources: str) -> dict[Case, Measured]:
    """Return the rows of the same sources; there may be none."""
    lines = RESULTS.read_text().splitlines() if RESULTS.exists() else []
    rows = [row for row in csv.DictReader(lines) if row["version"] == sources]
    return {
        Case(row["schedule"], row["pass"], int(row["ranks"])): Measured(  # type: ignore[arg-type]
            int(row["rows"]), *(float(row[name]) for name in (*STAGES, "memory"))
        )
        for row in rows
    }


def write(sources: str, case: Case, result: Measured) -> None:
    """Add a row to the file."""
    row = {"version": sources, "schedule": case.schedule, "pass": case.pass_, "ranks": case.ranks}
    row |= {name: getattr(result, name) for name in ("rows", *STAGES, "memory")}
    new = not RESULTS.exists()
    RESULTS.parent.mkdir(exist_ok=True)
    with RESULTS.open("a", newline="") as file:
        writer = csv.DictWriter(file, row, lineterminator="\n")
        if new:
            writer.writeheader()
        writer.writerow({k: f"{v:.2f}" if isinstance(v, float) else v for k, v in row.items()})


def results(wanted: Iterator[Case], quick: bool) -> dict[Case, Measured]:
    """Measure what is not known yet."""
    sources, made = version(), dict[Case, Measured]()
    known = {} if quick else read(sources)
    for case in wanted:
        made[case] = known.get(case) or apart(case)
        if case not in known and not (quick or made[case].refused):
            write(sources, case, made[case])
    return made


def table(results: dict[Case, Measured]) -> Table:
    """Seconds per stage, one line per case."""
    shown = Table(title=f"causal, {SEQ:,} tokens", box=None, padding=(0, 2, 0, 0))
    heads = "schedule", "pass", "ranks", "rows", *STAGES, "in all", "limit", "memory", "growth"
    for head in heads:
        shown.add_column(head, justify="left" if head in ("schedule", "pass") else "right")
    for case, result in results.items():
        total, less = sum(result.stages), results.get(replace(case, ranks=case.ranks // 4))
        seconds = [f"{stage:.2f} s" for stage in (*result.stages, total)]
        ends = f"{case.limits[0]:g} s", f"{result.memory:.2f} GiB"
        growth = (
            f"{total / sum(less.stages) * less.rows / result.rows:.2f}"
            if less and result.rows
            else ""
        )
        names = case.schedule, case.pass_, f"{case.ranks:,}", f"{result.rows:,}"
        shown.add_row(*names, *seconds, *ends, growth)
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
    made = results(wanted, chosen.quick)
    Console(width=140).print(table(made))
    missed = [line for case, result in made.items() for line in result.misses(case)]
    if missed:
        raise SystemExit("\n".join(missed))


if __name__ == "__main__":
    main()
