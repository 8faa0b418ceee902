"""Published measurements of attention, and the simulator's prediction for each.

A row of a CSV file has a setting and a measured time. The first nine columns are required:

    hardware    a preset, or a hardware file
    pass        forward, backward or both
    schedule    as on the command line: zigzag, usp:ulysses=4; ignored for one rank
    ranks, seq, heads, head_dim            seq: tokens of the whole sequence
    quantity    seconds, ms, per_s (runs per second), tflops (1e12 matrix flop/s per rank, for the
                allowed pairs), or ratio (to the time of the schedule in the column `versus`)
    value       the measurement
    kv_heads (default: heads), batch (1), mask (causal), dtype (bfloat16), source, versus
    use         fitted: constants were fitted to this row and others; given: known when constants
                were chosen; context: part of the setting is assumed, so mean errors exclude it
    why         for context: the assumption; for other rows: a likely cause of a large error
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from math import log
from pathlib import Path
from typing import Literal, get_args

from ringloom.comparison import PASSES
from ringloom.csv_rows import Record, check_choice, optional_number, positive_integer, records
from ringloom.planner.analysis.balance import loads
from ringloom.planner.analysis.tiles import tiles
from ringloom.planner.errors import RingloomError
from ringloom.planner.planning import find_schedule, plan
from ringloom.planner.plans import Passes, Plans
from ringloom.planner.workload import Workload
from ringloom.reproduce import DATA
from ringloom.simulator.confidence import Interval, interval, spread
from ringloom.simulator.costs.kernels import Kernels
from ringloom.simulator.hardware import Hardware, hardware
from ringloom.simulator.prediction import Prediction, simulate
from ringloom.simulator.scenario import Scenario
from ringloom.trials import with_node_size

Use = Literal["fitted", "given", "context", "blind"]
ROWS = DATA / "measured.csv"
COLUMNS = ("hardware", "pass", "schedule", "ranks", "seq", "heads", "head_dim")
QUANTITIES = ("seconds", "ms", "per_s", "tflops", "ratio")
FLOP = {"forward": 4, "backward": 10}  # per pair and element of a head, as charts count them
EVEN = Scenario()


@dataclass(frozen=True)
class Measured:
    """One published row; `value` is in the unit of its quantity."""

    source: str
    on: str
    pass_: Passes
    schedule: str
    ranks: int
    work: Workload
    quantity: str
    value: float
    versus: str
    use: Use
    why: str = ""

    @property
    def name(self) -> str:
        """Returns a short name of the row."""
        return f"{self.schedule if self.ranks > 1 else 'kernel'} {self.setting}"

    @property
    def setting(self) -> str:
        """Returns the setting without its schedule; rows with equal settings can be ranked."""
        work = self.work
        size = f"{work.seq // 1024}k" if work.seq % 1024 == 0 else f"{work.seq}"
        batch = f" x{work.batch}" if work.batch > 1 else ""
        heads = f"{work.heads}" if work.heads == work.kv_heads else f"{work.heads}:{work.kv_heads}"
        ranks = f"{self.ranks} ranks " if self.ranks > 1 else ""
        return f"{ranks}{size}{batch} {heads}x{work.head_dim} {work.mask} {self.pass_}"

    @cached_property
    def machine(self) -> Hardware:
        """Returns the hardware."""
        return hardware(self.on)

    @cached_property
    def versus_row(self) -> "Measured":
        """Returns the baseline of a ratio, in the same setting."""
        return replace(self, schedule=self.versus)

    @cached_property
    def plans(self) -> Plans:
        """Returns the plans of the schedule, for the node size of the hardware."""
        name = with_node_size(self.schedule, self.ranks, self.machine)
        return Plans.of(plan(name, self.work, self.ranks, pass_=self.pass_))

    @cached_property
    def predicted(self) -> Prediction:
        """Returns the prediction of the simulator."""
        return simulate(self.plans, self.machine, record=False)

    @cached_property
    def times(self) -> tuple[float, float]:
        """Returns (published, predicted) seconds, or ratios of seconds."""
        seconds = self.predicted.makespan
        if self.quantity == "ratio":
            return self.value, seconds / self.versus_row.predicted.makespan
        published = {
            "seconds": self.value,
            "ms": self.value / 1e3,
            "per_s": 1 / self.value,
            "tflops": self.flop / self.ranks / self.value / 1e12,
        }
        return published[self.quantity], seconds

    @property
    def error(self) -> float:
        """Returns log(predicted / published) of the time."""
        published, predicted = self.times
        return log(predicted / published)

    @property
    def ours(self) -> float:
        """Returns the prediction in the unit of the row's value."""
        published, predicted = self.times
        rate = self.quantity in ("per_s", "tflops")
        return self.value * (published / predicted if rate else predicted / published)

    @property
    def flop(self) -> float:
        """Returns the matrix flop of the allowed pairs on all ranks, as published charts count."""
        pairs = tiles(plan("ring", self.work, 1)).total_pairs()
        passes = ("forward", "backward") if self.pass_ == "both" else (self.pass_,)
        return float(sum(FLOP[p] for p in passes) * self.work.head_dim * self.work.batch * pairs)

    @cached_property  # `ringloom reproduce charts` takes twice as long without this cache
    def spread(self) -> Mapping[str, float]:
        """Returns the change of the time at the end of each constant's range."""
        return spread(self.plans, self.machine, EVEN, self.predicted.makespan)

    @property
    def interval(self) -> Interval:
        """Returns the 90% prediction interval in seconds."""
        return interval(self.machine, self.pass_, self.predicted.makespan, self.spread)

    @cached_property
    def baselines(self) -> Mapping[str, float]:
        """Returns the seconds that simpler models predict: see `BASELINES`."""
        flop_rate = self.machine.peak(self.work.dtype) * self.ranks
        compute = transfers = alphas = overlapped_s = 0.0
        predictions = self.predicted.passes or (self.predicted,)
        across_nodes = self.ranks > self.machine.ranks_per_node
        for pass_plan, prediction in zip(self.plans, predictions, strict=True):
            per_pair = Kernels(self.machine, self.work, pass_plan.pass_).seconds_per_pair
            busy = float(loads(pass_plan).sum(axis=0).max()) * per_pair
            link = prediction.busiest_link
            compute, transfers = compute + busy, transfers + link
            alphas += self.machine.links[across_nodes].alpha * (len(pass_plan.steps) if link else 0)
            overlapped_s += max(busy, link)
        return {
            "peak": self.flop / flop_rate,
            "serial": compute + transfers + alphas,
            "formula": overlapped_s,
        }


BASELINES = {
    "peak": "flop at the data-sheet peak, spread evenly",
    "serial": "the busiest rank's pairs at the kernels' full rate, plus alpha and bytes / bandwidth"
    " of its transfers",
    "formula": "max(compute, transfer), as in Ring Attention and BurstAttention",
}


@cache
def published_rows() -> tuple[Measured, ...]:
    """Returns the rows that ship with ringloom, cached with their predictions."""
    return tuple(measured(ROWS))


def measured(path: str | Path, use: Use | None = None) -> list[Measured]:
    """Reads the rows of a CSV file; `use` overrides the column of that name.

    Raises RingloomError, which names file and row, for an invalid row.
    """
    columns = (*COLUMNS, "quantity", "value")
    rows = enumerate(records(Path(path), columns), 1)
    return [_row(f"{path}, row {n}", record, use) for n, record in rows]


def _row(where: str, record: Record, use: Use | None) -> Measured:
    pass_ = check_choice(where, record["pass"], PASSES, "pass")
    quantity = check_choice(where, record["quantity"], QUANTITIES, "quantity")
    optional = [name for name in ("kv_heads", "batch") if record.get(name)]
    sizes = {name: positive_integer(where, record, name) for name in (*COLUMNS[3:], *optional)}
    ranks = sizes.pop("ranks")
    value = optional_number(where, record, "value")
    versus = record.get("versus", "")
    if value is None or (quantity == "ratio") != bool(versus):
        versus_rule = "a ratio needs a versus, other quantities none"
        raise RingloomError(f"{where}: {'value is missing' if value is None else versus_rule}")
    try:
        texts = {name: record[name] for name in ("mask", "dtype") if record.get(name)}
        work = Workload(**sizes, **texts)  # type: ignore[arg-type]
        row = Measured(
            source=record.get("source") or Path(where.partition(", row")[0]).stem,
            on=record["hardware"],
            pass_=pass_,  # type: ignore[arg-type]
            schedule=record["schedule"],
            ranks=ranks,
            work=work,
            quantity=quantity,
            value=value,
            versus=versus,
            why=record.get("why", ""),
            use=use or check_choice(where, record.get("use") or "given", get_args(Use), "use"),  # type: ignore[arg-type]
        )
        row.machine.peak(work.dtype)
        for name in filter(None, (row.schedule, versus)):
            find_schedule(name)
        return row
    except RingloomError as error:
        raise RingloomError(f"{where}: {error}") from None
