"""Tests the intervals of predictions on sources that they were not computed from."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import expm1

import numpy as np

from ringloom.simulator.confidence import Residual, basis, residuals


@dataclass(frozen=True)
class Left:
    """A source, tested against the intervals that all other sources give."""

    source: str
    rows: int
    inside: int
    half_width: float  # relative, of the median row


def left_out(rows: Sequence[Residual] | None = None) -> list[Left]:
    """Leaves out one source at a time."""
    rows, parts = residuals() if rows is None else rows, list[Left]()
    for source in dict.fromkeys(row.source for row in rows):
        others = [row for row in rows if row.source != source]
        own = [row for row in rows if row.source == source]
        halves = [basis(row.hardware, row.pass_, others).error for row in own]
        inside = sum(abs(r.error) <= half for r, half in zip(own, halves, strict=True))
        parts.append(Left(source, len(own), inside, expm1(float(np.median(halves)))))
    return parts
