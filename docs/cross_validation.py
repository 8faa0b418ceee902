"""Tests intervals of predictions on sources from which they were not computed."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import expm1

import numpy as np

from ringloom.simulator.confidence import Residual, basis, residuals


@dataclass(frozen=True)
class LeftOut:
    """A source, and the number of its rows inside the intervals of all other sources."""

    source: str
    rows: int
    inside: int
    half_width: float  # relative, of the median row


def leave_out_sources(rows: Sequence[Residual] | None = None) -> list[LeftOut]:
    """Tests each source against the intervals that all other sources give."""
    rows, results = residuals() if rows is None else rows, list[LeftOut]()
    for source in dict.fromkeys(row.source for row in rows):
        others = [row for row in rows if row.source != source]
        tested = [row for row in rows if row.source == source]
        widths = [basis(row.hardware, row.pass_, others).error for row in tested]
        inside = sum(abs(row.error) <= width for row, width in zip(tested, widths, strict=True))
        results.append(LeftOut(source, len(tested), inside, expm1(float(np.median(widths)))))
    return results
