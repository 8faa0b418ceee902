"""Numbers the shapes of tiles, so that tiles that differ only by a shift share a number."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ringloom.planner.masks.regions import Ints
from ringloom.planner.partitions import Partition, Ranges
from ringloom.planner.workload import Workload

Index = NDArray[np.integer]


def _shapes(chunks: tuple[Ranges, ...], shift: int) -> tuple[Ints, Ints]:
    """Returns the shape number and the first position of each chunk."""
    base = np.array([min((r.start for r in c), default=0) for c in chunks], np.int64)
    forms = [
        tuple((r.start - b, r.step, len(r)) for r in c)
        for c, b in zip(chunks, base.tolist(), strict=True)
    ]
    number = {form: i for i, form in enumerate(dict.fromkeys(forms))}
    return np.array([number[form] for form in forms], np.int64), base + shift


@dataclass(frozen=True, eq=False)
class Shapes:
    """The shape numbers and first positions of the chunks of both sides."""

    q: tuple[Ints, Ints]
    kv: tuple[Ints, Ints]
    only_distances: bool  # True if the mask depends only on distances

    @staticmethod
    def of(work: Workload, partition: Partition) -> "Shapes":
        """Finds the shapes of a partition under the mask of a workload."""
        i0, i1, j0, j1, _, _ = work.mask.region().pieces.T
        rows = (i0 <= work.offset) & (i1 >= work.kv_seq)
        only_distances = bool((rows & (j0 <= 0) & (j1 >= work.kv_seq)).all())
        sides = _shapes(partition.q.chunks, work.offset), _shapes(partition.kv.chunks, 0)
        return Shapes(*sides, only_distances)

    def rows(self, q: Index, kv: Index) -> Ints:
        """Returns numbers [n, w] that are equal for rectangles of the same shape.

        q: [n, a], kv: [n, b], chunks or -1. Rectangles with other numbers of chunks may have the
        same numbers.
        """
        if not self.only_distances:
            return np.concatenate([q, kv], axis=1).astype(np.int64)
        least, columns = np.iinfo(np.int64).min, list[Ints]()
        start = np.where(q < 0, least, self.q[1][q]).max(axis=1)[:, None]
        for (shape, base), chunks in ((self.q, q), (self.kv, kv)):
            columns += [np.where(chunks < 0, -1, shape[chunks])]
            columns += [np.where(chunks < 0, 0, base[chunks] - start)]
        return np.concatenate(columns, axis=1)
