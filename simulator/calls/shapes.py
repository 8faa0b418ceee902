"""Which tiles are alike but for a shift, so that they need to be looked at only once."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.masks import region_of
from planner.masks.regions import Ints
from planner.partitions import Partition, Ranges
from planner.workload import Workload


def shapes(chunks: tuple[Ranges, ...], shift: int) -> tuple[Ints, Ints]:
    """(shape number, first position) of each chunk; equal shapes are equal but for a shift."""
    base = np.array([min((r.start for r in c), default=0) for c in chunks], np.int64)
    found = [
        tuple((r.start - b, r.step, len(r)) for r in c)
        for c, b in zip(chunks, base.tolist(), strict=True)
    ]
    number = {shape: i for i, shape in enumerate(dict.fromkeys(found))}
    return np.array([number[shape] for shape in found], np.int64), base + shift


Index = NDArray[np.signedinteger[Any]]


@dataclass(frozen=True, eq=False)
class Shapes:
    """The chunks of both sides by shape and first position; `alike` if only distances matter."""

    q: tuple[Ints, Ints]
    kv: tuple[Ints, Ints]
    alike: bool

    @staticmethod
    def of(work: Workload, partition: Partition) -> "Shapes":
        """The shapes of a partition under the mask of a workload."""
        i0, i1, j0, j1, _, _ = region_of(work.mask).pieces.T
        rows = (i0 <= work.offset) & (i1 >= work.kv_seq)
        alike = bool((rows & (j0 <= 0) & (j1 >= work.kv_seq)).all())
        return Shapes(
            shapes(partition.q.chunks, work.offset), shapes(partition.kv.chunks, 0), alike
        )

    def keys(self, q: Index, kv: Index) -> Ints:
        """What tells tiles (q chunk, kv chunk) apart: [tiles]."""
        (shape, base), (other, origin) = self.q, self.kv
        if not self.alike:
            return q.astype(np.int64) * len(other) + kv
        kind = shape[q] * (other.max(initial=0) + 1) + other[kv]
        keys: Ints = (kind << 33) + (origin[kv] - base[q] + (1 << 32))
        return keys

    def key(self, q: Sequence[int], kv: Sequence[int]) -> tuple[object, ...]:
        """The same for rectangles of several chunks."""
        if not self.alike or not (q and kv):
            return tuple(q), tuple(kv)
        start, found = self.q[1][q[0]], list[object]()
        for (shape, base), chunks in ((self.q, q), (self.kv, kv)):
            places = np.array(chunks)
            found += shape[places].tobytes(), (base[places] - start).tobytes()
        return tuple(found)
