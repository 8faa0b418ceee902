"""runs(positions)   the rows of a block in which each of its ranges lies.

run ::= Run(row, stride, positions)    position number k of the range lies in row + stride * k

The tokens of a block are in ascending order, so ranges that interlace share out the rows.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from planner.partitions import Ranges, merge


class Run(NamedTuple):
    """A range of positions, and its rows."""

    row: int
    stride: int
    positions: range


def runs(positions: Ranges) -> list[Run]:
    """The runs of a block, by first row."""
    ordered = sorted(filter(len, positions), key=lambda x: x[0])
    if all(a[-1] < b[0] for a, b in pairwise(ordered)):
        rows = np.cumsum([0, *map(len, ordered)]).tolist()
        return [Run(row, 1, _plain(x)) for row, x in zip(rows, ordered, strict=False)]
    tokens = merge(positions)
    return sorted(run for x in ordered for run in _split(x, np.searchsorted(tokens, x)))


def _split(x: range, rows: np.ndarray) -> Iterator[Run]:
    """A range, cut wherever its rows do not go on evenly."""
    first, steps = 0, np.diff(rows)
    while first < len(x):
        stride = int(steps[first]) if first < len(steps) else 1
        uneven = np.flatnonzero(steps[first:] != stride)
        last = first + int(uneven[0]) + 1 if len(uneven) else len(x)
        yield Run(int(rows[first]), stride, _plain(x[first:last]))
        first = last


def _plain(x: range) -> range:
    """The same positions, of step 1 if there is one, and no further than the last."""
    return range(x[0], x[-1] + 1, x.step if len(x) > 1 else 1)
