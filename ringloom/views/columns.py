"""The columns of a comparison, for terminals, pages and notebooks: heading, field, format."""

from collections.abc import Callable
from typing import Any, NamedTuple

from ringloom.rows import Row
from ringloom.views.units import seconds, size, times


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
    ("exposed", "exposed_comm_s", seconds),
    ("sent", "max_bytes_sent", size),
    ("peak", "peak_bytes", size),
    ("bound", "bound_ratio", over),
)
LABELS = tuple(label for label, _, _ in COLUMNS)


def cells(row: Row) -> list[Cell]:
    """Returns the cells of a row, in the order of the columns."""
    numbers = [(label, field, getattr(row, field), text) for label, field, text in COLUMNS]
    return [Cell(label, field, value, text(value)) for label, field, value, text in numbers]
