"""Meshes of ranks for random plans, what they own of a workload, and what their rows exchange."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from ringloom.planner.ir import Move
from ringloom.planner.layouts import chunks_of
from ringloom.planner.layouts.pieces import by_heads, cut, whole_heads
from ringloom.planner.masks import Causal, Full
from ringloom.planner.masks.mask import SideName
from ringloom.planner.partitions import Ints, Partition
from ringloom.planner.workload import Workload
from strategies import masks

Offset = tuple[int, ...]
SIDES: tuple[SideName, ...] = ("q", "kv")
RINGS = [(2,), (3,), (3,), (4,), (4,), (5,)]
GRIDS = [(2, 2), (2, 2), (2, 2), (2, 3), (3, 2), (2, 4), (4, 2)]
SHARED = ("", "", "", "heads", "q", "kv")  # by an exchange along the first or the last axis


class Mesh:
    """Ranks in the given shape, of which the last axis counts fastest."""

    def __init__(self, *shape: int) -> None:
        self.shape, self.ranks, self.zero = shape, int(np.prod(shape)), (0,) * len(shape)
        self.rank: Ints = np.arange(self.ranks, dtype=np.int32)
        self.where = np.stack(np.unravel_index(self.rank, shape), axis=1)

    def to(self, offset: Sequence[int]) -> Ints:
        """The rank that lies so many places after each."""
        place = (self.where + np.array(offset)) % self.shape
        receiver: Ints = self.rank.reshape(self.shape)[tuple(place.T)]
        return receiver

    def minus(self, a: Offset, b: Offset) -> Offset:
        return tuple((x - y) % n for x, y, n in zip(a, b, self.shape, strict=True))

    def along(self, axis: int, places: int) -> Offset:
        return tuple(places % n * (i == axis) for i, n in enumerate(self.shape))


@dataclass(frozen=True)
class Cut:
    """The owners of blocks, and what rows of ranks along `axis` share before they attend."""

    mesh: Mesh
    work: Workload
    partition: Partition
    shared: str
    axis: int

    def part(self, side: SideName, owner: Ints, of: Ints) -> Ints:
        """The blocks of owners that ranks get in an exchange: [ranks, w]."""
        own = self.partition.side(side).owned(self.mesh.ranks)
        if self.shared != "heads":
            return own[owner]
        slices = self.mesh.shape[self.axis]
        by_slice = own.reshape(len(own), -1, slices)
        return by_slice[owner, :, self.mesh.where[of, self.axis]]

    def here(self, side: SideName) -> Ints:
        """The blocks of each rank with which it begins, after an exchange where there is one."""
        rank = self.mesh.rank
        if not self.exchanges(side):
            return self.partition.side(side).owned(self.mesh.ranks)
        places = range(self.mesh.shape[self.axis])
        owners = [self.mesh.to(self.mesh.along(self.axis, n)) for n in places]
        first = np.stack([self.mesh.where[o, self.axis] for o in owners]).argsort(axis=0)
        ordered = np.take_along_axis(np.stack(owners), first, axis=0)
        return np.hstack([self.part(side, o, rank) for o in ordered])

    def exchanges(self, side: SideName) -> bool:
        return self.shared in ("heads", side)

    def exchange(self, side: SideName, tensors: tuple[str, ...], back: bool) -> Iterable[Move]:
        """The messages of every rank to all others of its row."""
        rank = self.mesh.rank
        for n in range(1, self.mesh.shape[self.axis]):
            to = self.mesh.to(self.mesh.along(self.axis, n))
            blocks = self.part(side, to, rank) if back else self.part(side, rank, to)
            yield Move(tensors, blocks, rank, to)


def small_workload(draw: st.DrawFn, seq: int, kv_heads: int) -> Workload:
    """Few tokens and heads, a full mask in half of them."""
    mask = draw(st.sampled_from([*[Full()] * 4, Causal(), Causal(), None])) or draw(
        masks(seq, seq, 0)
    )
    return Workload(
        seq,
        heads=kv_heads * draw(st.integers(1, 2)),
        kv_heads=kv_heads,
        head_dim=draw(st.integers(1, 2)),
        mask=mask,
        dtype="float64",
    )


@st.composite
def cuts(draw: st.DrawFn) -> Cut:
    """Meshes with partitions and workloads for them: few tokens, few heads."""
    mesh = Mesh(*draw(st.sampled_from(RINGS) | st.sampled_from(GRIDS)))
    shared = draw(st.sampled_from(SHARED)) if len(mesh.shape) > 1 else ""
    axis = draw(st.sampled_from([0, len(mesh.shape) - 1]))
    many = mesh.shape[axis] if shared == "heads" else 1
    seq = mesh.ranks * draw(st.sampled_from([2, 4]))
    layout = draw(st.sampled_from(["contiguous", "contiguous", "zigzag", "striped"]))
    work = small_workload(draw, seq, many * draw(st.integers(1, 2)))
    chunks = chunks_of(layout, seq, mesh.ranks)
    q, kv = (
        by_heads(chunks, cut(n, many)) if shared == "heads" else whole_heads(chunks, n)
        for n in (work.heads, work.kv_heads)
    )
    return Cut(mesh, work, Partition(q, kv), shared, axis)
