"""Numbers of tile shapes: tiles that differ only by a shift have the same number."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ringloom.planner.masks.regions import Ints
from ringloom.planner.partitions import Partition, Ranges
from ringloom.planner.workload import Workload

Index = NDArray[np.integer]


def _shapes(chunks: tuple[Ranges, ...], shift: int) -> tuple[Ints, Ints]:
    """Returns (shape number, first position) of each chunk; equal shapes differ by a shift."""
    base = np.array([min((r.start for r in c), default=0) for c in chunks], np.int64)
    forms = [
        tuple((r.start - b, r.step, len(r)) for r in c)
        for c, b in zip(chunks, base.tolist(), strict=True)
    ]
    number = {form: i for i, form in enumerate(dict.fromkeys(forms))}
    return np.array([number[form] for form in forms], np.int64), base + shift


@dataclass(frozen=True, eq=False)
class Shapes:
    """The chunks of both sides by shape and first position; `alike` if only distances matter."""

    q: tuple[Ints, Ints]
    kv: tuple[Ints, Ints]
    alike: bool

    @staticmethod
    def of(work: Workload, partition: Partition) -> "Shapes":
        """Finds the shapes of a partition under the mask of a workload."""
        i0, i1, j0, j1, _, _ = work.mask.region().pieces.T
        rows = (i0 <= work.offset) & (i1 >= work.kv_seq)
        alike = bool((rows & (j0 <= 0) & (j1 >= work.kv_seq)).all())
        sides = _shapes(partition.q.chunks, work.offset), _shapes(partition.kv.chunks, 0)
        return Shapes(*sides, alike)

    def rows(self, q: Index, kv: Index) -> Ints:
        """Returns numbers [n, w], equal for rectangles of equal chunks: q [n, a], kv [n, b], or -1.

        The same for as many chunks a side: others may have the same numbers.
        """
        if not self.alike:
            return np.concatenate([q, kv], axis=1).astype(np.int64)
        least, columns = np.iinfo(np.int64).min, list[Ints]()
        start = np.where(q < 0, least, self.q[1][q]).max(axis=1)[:, None]
        for (shape, base), chunks in ((self.q, q), (self.kv, kv)):
            columns += [np.where(chunks < 0, -1, shape[chunks])]
            columns += [np.where(chunks < 0, 0, base[chunks] - start)]
        return np.concatenate(columns, axis=1)
