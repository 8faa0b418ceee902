"""Rows of a comparison, with the numbers of a schedule or why it cannot run, and the columns."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, ClassVar, NamedTuple

from ringloom.views.units import seconds, size, times


@dataclass(frozen=True)
class Load:
    """The work of one rank as a multiple of the average over all ranks."""

    rank: int
    share: float


@dataclass(frozen=True, repr=False)
class Row:
    """The numbers of one schedule in a comparison; `exact` is None if it was not executed."""

    schedule: str
    makespan_s: float
    speedup_vs_ring: float
    idle_fraction: float
    exposed_comm_s: float
    max_bytes_sent: int
    peak_bytes: int
    bound_s: float  # lower bound for the workload and machine, the same in every row
    bound_ratio: float | None  # None if the bound does not apply to this kind of plan
    own_limit_s: float  # lower bound for this plan: its busiest rank or link
    imbalance: float
    busiest: Load
    lightest: Load
    verified_seq: int
    exact: bool | None = None
    exact_seq: int | None = None
    bound_reason: str | None = None  # why bound_ratio is None
    # Lower bound from compute and memory alone, which applies to every exact plan.
    compute_bound_s: float = 0.0
    compute_bound_ratio: float | None = None  # None if the mask allows no pair
    # 90% prediction intervals of the time, and of its ratio to the fastest if that is close.
    interval_s: tuple[float, float] | None = field(default=None, compare=False)
    ratio_interval: tuple[float, float] | None = field(default=None, compare=False)
    added: bool = False  # a given plan, such as the result of a search

    def __repr__(self) -> str:
        bound = ""
        if self.bound_ratio is not None:
            bound = f", {bound_multiple(self.bound_ratio)} times the lower bound"
        elif self.compute_bound_ratio is not None:
            multiple = bound_multiple(self.compute_bound_ratio)
            bound = f", {multiple} times the bound of compute and memory"
        time = f"{self.makespan_s:.4g} s, {self.idle_fraction:.0%} idle"
        return f"<Row {self.schedule}: {time}{bound}>"

    @property
    def has_compute_bound_only(self) -> bool:
        """Returns True if only the bound of compute and memory applies."""
        return self.bound_ratio is None and self.compute_bound_ratio is not None

    @property
    def order(self) -> tuple[float, int, int, float]:
        """Returns the sort key: time to three digits, bytes sent, memory, then exact time."""
        return (
            float(f"{self.makespan_s:.3g}"),
            self.max_bytes_sent,
            self.peak_bytes,
            self.makespan_s,
        )

    def as_dict(self) -> dict[str, Any]:
        """Returns plain values for JSON."""
        return {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}


@dataclass(frozen=True)
class Refusal:
    """A schedule that cannot run, with the reason."""

    verdict: ClassVar[str] = "cannot run"

    schedule: str
    reason: str

    def as_dict(self) -> dict[str, Any]:
        """Returns a row for JSON whose numbers are null."""
        return {field.name: None for field in fields(Row)} | asdict(self)


class Unreached(Refusal):
    """A schedule that was not tried, with the reason."""

    verdict = "was not tried"


def flat(row: dict[str, Any]) -> dict[str, Any]:
    """Flattens a row for tables: each entry of a nested dictionary becomes a column."""
    return {
        f"{name}.{key}" if key else name: list(entry) if isinstance(entry, tuple) else entry
        for name, value in row.items()
        for key, entry in (value if isinstance(value, dict) else {"": value}).items()
    }


def shortage(needed: float, limit: float) -> str:
    """Returns the needed and available bytes of a rank in words; "" if there are enough."""
    if needed <= limit:
        return ""
    return f"needs {size(needed)} per rank, more than the {size(int(limit))} available"


# ---- columns, for terminals, pages and notebooks


class Cell(NamedTuple):
    """One cell of a row: its column heading, field, value, and printed text."""

    label: str
    field: str
    value: float | None
    text: str


def bound_multiple(ratio: float | None) -> str:
    """Formats a ratio to the lower bound; a dash for None."""
    return "-" if ratio is None else times(ratio).removesuffix("x")


COLUMNS: tuple[tuple[str, str, Callable[[Any], str]], ...] = (
    ("time", "makespan_s", seconds),
    ("vs ring", "speedup_vs_ring", times),
    ("idle", "idle_fraction", lambda value: f"{value:.0%}"),
    ("exposed comm", "exposed_comm_s", seconds),
    ("sent", "max_bytes_sent", size),
    ("peak", "peak_bytes", size),
    ("x bound", "bound_ratio", bound_multiple),
)
LABELS = tuple(label for label, _, _ in COLUMNS)


GIVEN_MARK = "+"  # marks a plan that was given
COMPUTE_MARK = "c"  # marks a ratio to the bound of compute and memory alone


def cells(row: Row) -> list[Cell]:
    """Returns the cells of a row in the order of the columns.

    The last cell is the ratio to the lower bound or, with a mark, to that of compute and memory.
    """
    numbers = [(label, field, getattr(row, field), form) for label, field, form in COLUMNS]
    *others, bound = [
        Cell(label, field, value, form(value)) for label, field, value, form in numbers
    ]
    if row.has_compute_bound_only:
        ratio = row.compute_bound_ratio
        bound = Cell(
            bound.label, "compute_bound_ratio", ratio, bound_multiple(ratio) + COMPUTE_MARK
        )
    return [*others, bound]


def notes(rows: Sequence[Row]) -> list[str]:
    """Returns the meanings of the marks that occur in the rows."""
    lines = [f"{GIVEN_MARK}: the given plan, {row.schedule}" for row in rows if row.added]
    if row := next((row for row in rows if row.has_compute_bound_only), None):
        lines.append(
            f"{COMPUTE_MARK}: multiple of the bound of compute and memory alone; the lower bound"
            f" does not apply to {row.schedule}: {row.bound_reason}"
        )
    return lines
