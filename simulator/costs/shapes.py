"""Numbers for tiles that are equal but for a shift, so that one of them stands for all."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.masks.regions import Ints
from planner.partitions import Partition, Ranges
from planner.workload import Workload

Index = NDArray[np.integer]
Rectangles = tuple[NDArray[np.int32], NDArray[np.int32]]  # chunks of q and kv, -1 for none


def _shapes(chunks: tuple[Ranges, ...], shift: int) -> tuple[Ints, Ints]:
    """Return (shape number, first position) of each chunk; equal shapes differ by a shift."""
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
        """Find the shapes of a partition under the mask of a workload."""
        i0, i1, j0, j1, _, _ = work.mask.region().pieces.T
        rows = (i0 <= work.offset) & (i1 >= work.kv_seq)
        alike = bool((rows & (j0 <= 0) & (j1 >= work.kv_seq)).all())
        sides = _shapes(partition.q.chunks, work.offset), _shapes(partition.kv.chunks, 0)
        return Shapes(*sides, alike)

    def keys(self, q: Ints, kv: Ints) -> Ints:
        """Return a number for each tile (q chunk, kv chunk), equal for equal tiles: [tiles]."""
        (shape, base), (other, origin) = self.q, self.kv
        if not self.alike:
            return q * len(other) + kv
        kind = shape[q] * (other.max(initial=0) + 1) + other[kv]
        keys: Ints = (kind << 33) + (origin[kv] - base[q] + (1 << 32))
        return keys

    def key(self, q: Index, kv: Index) -> tuple[bytes, ...]:
        """Return the same for rectangles of several chunks."""
        if not self.alike or not (len(q) and len(kv)):
            return q.tobytes(), kv.tobytes()
        start, parts = self.q[1][q[0]], list[bytes]()
        for (shape, base), chunks in ((self.q, q), (self.kv, kv)):
            parts += shape[chunks].tobytes(), (base[chunks] - start).tobytes()
        return tuple(parts)

    def equal(self, ones: Rectangles, others: Rectangles) -> NDArray[np.bool_]:
        """Return which rectangles, chunks [n, a] of q and [n, b] of kv, equal others: bool [n]."""
        same = np.ones(len(ones[0]), np.bool_)
        least, base = np.iinfo(np.int64).min, np.append(self.q[1], 0)
        start, origin = (np.where(q < 0, least, base[q]).max(axis=1) for q, _ in (ones, others))
        for side, one, other in zip((self.q, self.kv), ones, others, strict=True):
            shape, base = np.append(side[0], -1), np.append(side[1], 0)
            for a, b in zip(one.T, other.T, strict=True):
                if not self.alike:
                    same &= a == b
                    continue
                same &= shape[a] == shape[b]
                same &= (a < 0) | (base[b] - base[a] == origin - start)
        return same
