"""Columns of integers as runs (first, step, count), which are short for regular columns.

5 6 7 0 1 2 3 4   <-->   [[5, 1, 3], [0, 1, 5]]
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ringloom.planner.errors import PlanError, brief
from ringloom.planner.partitions import Ints

SHORTEST_COLUMN = 16  # shorter columns are never runs, so that older readers can read small plans
LARGEST_NUMBER = np.iinfo(np.int32).max
Runs = list[list[int]]


def runs_of(column: Ints) -> Runs | None:
    """Returns the runs of a column [n], or None if the runs are not shorter than the column."""
    if len(column) < SHORTEST_COLUMN:
        return None
    steps = np.diff(column)
    changes = np.flatnonzero(steps[1:] != steps[:-1]) + 1
    if 3 * len(changes) >= len(column):
        return None
    runs, start, last = Runs(), 0, len(column) - 1
    for end in [*changes.tolist(), last]:
        if end > start or end == last:  # otherwise, the change is in the first step of a run
            step = int(steps[start]) if end > start else 0
            runs.append([int(column[start]), step, end - start + 1])
            start = end + 1
    return runs


def count_numbers(runs: Any) -> int:
    """Counts the numbers that runs stand for; raises PlanError for invalid runs of int32."""
    if not isinstance(runs, list):
        raise PlanError(f"corrupt plan file: runs must be a list, not {brief(runs)}")
    return sum(_count(run) for run in runs)


def _count(run: Any) -> int:
    is_integers = isinstance(run, list) and all(type(n) is int for n in run)
    if not is_integers or len(run) != 3:
        raise PlanError(f"corrupt plan file: a run must be [first, step, count], not {brief(run)}")
    first, step, count = run
    if count < 1 or not all(
        -1 <= end <= LARGEST_NUMBER for end in (first, first + step * (count - 1))
    ):
        raise PlanError(f"corrupt plan file: the run {brief(run)} is outside -1..{LARGEST_NUMBER}")
    return int(count)


def expand_runs(runs: Runs) -> NDArray[np.int64]:
    """Returns the numbers that valid runs stand for: [n]."""
    parts = [first + step * np.arange(count) for first, step, count in runs]
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)
