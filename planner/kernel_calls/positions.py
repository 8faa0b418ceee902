"""The positions of a plan's rectangles, and the boxes of the mask that overlap them."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ringloom.planner.masks.areas import count_positions
from ringloom.planner.masks.regions import Ints as Numbers
from ringloom.planner.partitions import Ints, Partition, Ranges, shift_ranges
from ringloom.planner.workload import Workload


class Rectangle(NamedTuple):
    """Positions of each block, queries aligned with keys, and boxes of the mask: int64 [n, 6]."""

    q: list[Ranges]
    kv: list[Ranges]
    boxes: Numbers


class Positions:
    """The chunks of a partition under the mask of a workload."""

    def __init__(self, work: Workload, partition: Partition) -> None:
        self._offset, self._pieces = work.offset, work.mask.region().pieces
        self._q, self._kv = partition.q, partition.kv
        self.tokens = [np.append(count_positions(side.chunks), 0) for side in (self._q, self._kv)]
        self._chunk = [np.append(side.chunk, -1) for side in (self._q, self._kv)]
        self.hulls = [_find_hulls(side.chunks) for side in (self._q, self._kv)]

    def chunks(self, *sides: Ints) -> list[Ints]:
        """Returns the chunks of the blocks of each side, column-major; -1 for no block."""
        return [chunk.take(blocks.T).T for chunk, blocks in zip(self._chunk, sides, strict=True)]

    def in_order(self, *sides: Ints) -> list[Ints]:
        """Returns the non-empty chunks of each side, in the order of their first positions."""
        ordered = list[Ints]()
        for chunks, tokens, (first, _) in zip(sides, self.tokens, self.hulls, strict=True):
            non_empty = chunks[tokens[chunks] > 0]
            ordered.append(non_empty[np.argsort(first[non_empty])])
        return ordered

    def rectangle(self, q: Ints, kv: Ints) -> Rectangle:
        """Returns the rectangle of the given chunks, in the given order."""
        rows = [shift_ranges(self._q.chunks[c], self._offset) for c in q.tolist()]
        columns = [self._kv.chunks[c] for c in kv.tolist()]
        i0, i1, j0, j1, lo, hi = self._pieces.T
        (first, last), (first_key, last_key) = self.hulls
        a, b = first[q].min() + self._offset, last[q].max() + self._offset
        c, d = first_key[kv].min(), last_key[kv].max()
        is_near = (i0 <= b) & (a < i1) & (j0 <= d) & (c < j1) & (lo <= d - a) & (c - b <= hi)
        return Rectangle(rows, columns, self._pieces[is_near])


def count_repeated(spans: Sequence[range]) -> int:
    """Counts the numbers in ranges that also occur in an earlier range."""
    is_covered = np.zeros(max((span.stop for span in spans), default=0), np.bool_)
    for span in spans:
        is_covered[span.start : span.stop : span.step] = True
    return sum(map(len, spans)) - int(is_covered.sum())


def _find_hulls(chunks: Sequence[Ranges]) -> Numbers:
    """Returns the first and last position of each chunk, 0 and -1 if empty: [2, chunks]."""
    ends = [
        (min((r[0] for r in chunk), default=0), max((r[-1] for r in chunk), default=-1))
        for chunk in chunks
    ]
    return np.array(ends, np.int64).T
