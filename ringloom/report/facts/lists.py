"""Many short lists of whole numbers in three arrays, to be looked up one at a time."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.partitions import Ints


@dataclass(frozen=True, eq=False)
class Lists:
    """Lists of whole numbers: list n is `values[start[n] : start[n] + count[n]]`."""

    values: NDArray[np.int32]
    start: NDArray[np.int32]
    count: NDArray[np.int32]

    def __getitem__(self, rows: NDArray[np.intp]) -> "Lists":
        return Lists(self.values, self.start[rows], self.count[rows])

    def columns(self, name: str) -> dict[str, list[Any]]:
        """The three arrays as columns of one entry."""
        return {f"{name}_{part}": [getattr(self, part)] for part in ("values", "start", "count")}

    def texts(self) -> list[str]:
        """Each list with commas: 3,4."""
        words = list(map(str, self.values.tolist()))
        ends = (self.start + self.count).tolist()
        return [",".join(words[a:b]) for a, b in zip(self.start.tolist(), ends, strict=True)]


def lists(tables: Sequence[Ints]) -> Lists:
    """A list per row of some tables [rows, width], in turn; -1 stands for nothing."""
    heights, widths = zip((0, 0), *(table.shape for table in tables), strict=True)
    cells = np.concatenate([np.zeros(0, np.int32), *(table.reshape(-1) for table in tables)])
    row = np.repeat(np.arange(sum(heights)), np.repeat(widths, heights))
    present = cells >= 0
    count = np.bincount(row[present], minlength=sum(heights)).astype(np.int32)
    return Lists(cells[present].astype(np.int32), np.cumsum(count, dtype=np.int32) - count, count)


def chained(parts: Sequence[Lists]) -> Lists:
    """The lists of several, in turn."""
    sizes = np.cumsum([0, *(len(part.values) for part in parts)])
    moved = [part.start + int(by) for part, by in zip(parts, sizes, strict=False)]
    return Lists(
        np.concatenate([part.values for part in parts]),
        np.concatenate(moved, dtype=np.int32),
        np.concatenate([part.count for part in parts]),
    )
