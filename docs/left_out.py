"""Intervals of predictions, judged by sources that they do not rest on."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import expm1

from simulator.confidence import Residual, model_error, residuals


@dataclass(frozen=True)
class Left:
    """A source, judged by the intervals that all other sources give."""

    source: str
    rows: int
    inside: int
    half_width: float  # relative


def left_out(rows: Sequence[Residual] | None = None) -> list[Left]:
    """Leave out one source at a time."""
    rows, parts = residuals() if rows is None else rows, list[Left]()
    for source in dict.fromkeys(row.source for row in rows):
        own = [row for row in rows if row.source == source]
        half = model_error(own[0].hardware, [row for row in rows if row.source != source])
        parts.append(Left(source, len(own), sum(abs(r.error) <= half for r in own), expm1(half)))
    return parts
