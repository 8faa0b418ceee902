"""Sets of positions, many at a time: counts below a position, the next one, the last one.

A set is a few ranges, interleaved or not; all answers are closed forms, row by row.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from planner.masks.regions import Ints
from planner.partitions import Ranges, merge


@dataclass(frozen=True)
class Sets:
    """Sets of positions as padded ranges, int64 [sets, widest], for closed forms on them."""

    start: Ints
    step: Ints
    size: Ints

    @staticmethod
    def of(chunks: tuple[Ranges, ...], shift: int) -> "Sets":
        """Pad the ranges of each set with empty ones; all positions are shifted."""
        fields = np.zeros((3, len(chunks), max(map(len, chunks), default=0)), np.int64)
        fields[1] = 1
        for row, ranges in enumerate(chunks):
            for column, r in enumerate(ranges):
                fields[:, row, column] = r.start + shift, r.step, len(r)
        return Sets(*fields)

    def below(self, row: Ints | int, position: Ints) -> Ints:
        """Count the positions of a set below the given ones."""
        answer = np.zeros_like(position)
        for start, step, size in self.columns(row):
            answer += np.clip(-((start - position) // step), 0, size)
        return answer

    def next(self, row: Ints, position: Ints) -> Ints:
        """Return the first position of a set from the given ones up; far above all if none is."""
        answer = np.full_like(position, 2**40)
        for start, step, size in self.columns(row):
            k = np.maximum(-((start - position) // step), 0)
            answer = np.where(k < size, np.minimum(answer, start + k * step), answer)
        return answer

    def previous(self, row: Ints, position: Ints) -> Ints:
        """Return the last position of a set up to the given ones; far below all if none is."""
        answer = np.full_like(position, -(2**40))
        for start, step, size in self.columns(row):
            k = np.minimum((position - start) // step, size - 1)
            answer = np.where(k >= 0, np.maximum(answer, start + k * step), answer)
        return answer

    def columns(self, row: Ints | int) -> Iterator[tuple[Ints, Ints, Ints]]:
        """Yield (start, step, size) of the first range of each row's set, then of the others."""
        for c in range(self.start.shape[1]):
            yield self.start[row, c], self.step[row, c], self.size[row, c]


def runs_of(ranges: Ranges, width: int) -> tuple[Ints, Ints, int]:
    """Return first and last position of each run of `width` tokens, and the set's widest gap."""
    tokens = merge(ranges)
    first = tokens[::width]
    last = tokens[np.minimum(np.arange(len(first)) * width + width, len(tokens)) - 1]
    return first, last, int(np.diff(tokens).max(initial=1))
