"""The rows of a comparison, numbers of one schedule or why it cannot run, and their columns."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, ClassVar, NamedTuple

from ringloom.views.units import seconds, size, times


@dataclass(frozen=True)
class Load:
    """The work of one rank, as a share of the mean over ranks."""

    rank: int
    share: float


@dataclass(frozen=True, repr=False)
class Row:
    """One schedule of a comparison; seconds, bytes, ratios. `exact` is None where nothing ran."""

    schedule: str
    makespan_s: float
    speedup_vs_ring: float
    idle_fraction: float
    exposed_comm_s: float
    max_bytes_sent: int
    peak_bytes: int
    bound_s: float  # of the workload and machine, the same in every row
    bound_ratio: float | None  # None for a plan of a kind for which the bound does not hold
    own_limit_s: float  # of this plan: its busiest rank or link
    imbalance: float
    busiest: Load
    lightest: Load
    verified_seq: int
    exact: bool | None = None
    exact_seq: int | None = None
    bound_reason: str | None = None  # why there is no bound_ratio
    # Of compute and memory alone, which no exact plan is below, whatever its kind.
    compute_bound_s: float = 0.0
    compute_bound_ratio: float | None = None  # None where the mask allows no pair
    # Nine of ten times would be measured in it; of time over the fastest, None if far off.
    interval_s: tuple[float, float] | None = field(default=None, compare=False)
    ratio_interval: tuple[float, float] | None = field(default=None, compare=False)
    added: bool = False  # a plan that was given beside the schedules, such as that of a search

    def __repr__(self) -> str:
        bound = f", {over(self.bound_ratio)} times the lower bound" * (self.bound_ratio is not None)
        if self.computing:
            bound = f", {over(self.compute_bound_ratio)} times the bound of compute and memory"
        time = f"{self.makespan_s:.4g} s, {self.idle_fraction:.0%} idle"
        return f"<Row {self.schedule}: {time}{bound}>"

    @property
    def computing(self) -> bool:
        """True where the lower bound does not hold, but that of compute and memory does."""
        return self.bound_ratio is None and self.compute_bound_ratio is not None

    @property
    def order(self) -> tuple[float, int, int, float]:
        """Sort key: time to three digits as printed, then bytes sent, then memory, then time."""
        return (
            float(f"{self.makespan_s:.3g}"),
            self.max_bytes_sent,
            self.peak_bytes,
            self.makespan_s,
        )

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}


@dataclass(frozen=True)
class Refusal:
    """A schedule that cannot run, and the reason."""

    verdict: ClassVar[str] = "cannot run"

    schedule: str
    reason: str

    def as_dict(self) -> dict[str, Any]:
        """A row for JSON whose numbers are null."""
        return {field.name: None for field in fields(Row)} | asdict(self)


class Unreached(Refusal):
    """A schedule that was not tried, and the reason."""

    verdict = "was not tried"


def flat(row: dict[str, Any]) -> dict[str, Any]:
    """Returns a row for tables: a dictionary in it makes a column of each entry."""
    return {
        f"{name}.{key}" if key else name: list(entry) if isinstance(entry, tuple) else entry
        for name, value in row.items()
        for key, entry in (value if isinstance(value, dict) else {"": value}).items()
    }


def shortage(needed: float, room: float) -> str:
    """Returns why a rank lacks memory [bytes]; nothing where it has enough."""
    return f"needs {size(needed)} on a rank, which has {size(int(room))}" if needed > room else ""


# ---- columns, for terminals, pages and notebooks


class Cell(NamedTuple):
    """A number of a row: its heading, its field, the number itself and as people read it."""

    label: str
    field: str
    value: float | None
    text: str


def over(ratio: float | None) -> str:
    """Writes a ratio to the lower bound; a dash where there is none."""
    return "-" if ratio is None else times(ratio).removesuffix("x")


COLUMNS: tuple[tuple[str, str, Callable[[Any], str]], ...] = (
    ("time", "makespan_s", seconds),
    ("vs ring", "speedup_vs_ring", times),
    ("idle", "idle_fraction", lambda value: f"{value:.0%}"),
    ("exposed comm", "exposed_comm_s", seconds),
    ("sent", "max_bytes_sent", size),
    ("peak", "peak_bytes", size),
    ("x bound", "bound_ratio", over),
)
LABELS = tuple(label for label, _, _ in COLUMNS)


ADDED = "+"  # before the name of a row
COMPUTING = "c"  # after a ratio to the bound of compute and memory alone


def cells(row: Row) -> list[Cell]:
    """Returns the cells of a row, in the order of the columns.

    The last is the ratio to the lower bound, or else to that of compute and memory, and says so.
    """
    numbers = [(label, field, getattr(row, field), text) for label, field, text in COLUMNS]
    *usual, bound = [
        Cell(label, field, value, text(value)) for label, field, value, text in numbers
    ]
    if row.computing:
        ratio = row.compute_bound_ratio
        bound = Cell(bound.label, "compute_bound_ratio", ratio, over(ratio) + COMPUTING)
    return [*usual, bound]


def notes(rows: Sequence[Row]) -> list[str]:
    """Returns what the marks in cells, and before names, mean, where there are any."""
    plus = [f"{ADDED}: a plan that was given, {row.schedule}" for row in rows if row.added]
    marked = {row.bound_reason: row.schedule for row in reversed(rows) if row.computing}
    return plus + [
        f"{COMPUTING}: time over the bound of compute and memory alone; the lower bound does not"
        f" hold for {name}: {reason}"
        for reason, name in [*marked.items()][-1:]
    ]
