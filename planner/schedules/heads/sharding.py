"""Heads over ranks: an all-to-all in each group of ranks gives each every token of its heads.

    q[c, h]  ->  rank h of the group       c: pieces of the group's tokens, h: slices of the heads

Head slices need divide nothing: KV heads are cut wherever a query slice begins or ends.
"""

from itertools import pairwise

import numpy as np

from ringloom.planner.ir import InitialCopy, Move
from ringloom.planner.layouts import Chunks, Layout, by_heads, cut, sides, split
from ringloom.planner.partitions import Ints, Side, check_places, heads_in_common
from ringloom.planner.schedules.grid import Grid
from ringloom.planner.workload import Workload


def head_slices(work: Workload, parts: int) -> tuple[list[range], list[range]]:
    """Query slices, and KV slices cut wherever one of those begins or ends."""
    q = [s for s in cut(work.heads, parts) if len(s)]
    edges = {s.start // work.group for s in q} | {-(-s.stop // work.group) for s in q}
    ends = sorted(edges)
    return q, [range(a, b) for a, b in pairwise(ends)]


class Shards:
    """One side: where its blocks live.

    `pieces` belong to groups of `ulysses` ranks, each of which owns a part of each piece.
    """

    def __init__(self, pieces: Chunks, ulysses: int, groups: int, slices: list[range]) -> None:
        self.grid, self.slices = Grid(groups, ulysses), len(slices)
        ranks = ulysses * groups
        check_places(ranks, len(pieces) * ulysses * len(slices))
        chunks = [
            (part, group * ulysses + member)
            for positions, group in pieces
            for member, part in enumerate(split(positions, ulysses))
        ]
        self.side: Side = by_heads(chunks, slices)
        self.own: Ints = by_heads(chunks, [range(1)]).owned(ranks)  # pieces of each rank


def shards(
    work: Workload, ulysses: int, groups: int, parts: int, layout: Layout
) -> tuple[Shards, Shards, list[list[int]]]:
    """Both sides, heads in so many parts, and the KV slices that each query slice meets."""
    q_slices, kv_slices = head_slices(work, parts)
    queries, keys = sides(work, groups, layout)
    q = Shards(queries, ulysses, groups, q_slices)
    same = (queries, q_slices) == (keys, kv_slices)  # then what is found out of one side goes
    kv = q if same else Shards(keys, ulysses, groups, kv_slices)
    common = heads_in_common(q_slices, kv_slices, work.group)
    return q, kv, [np.flatnonzero(heads).tolist() for heads in common]


class Exchange:
    """The all-to-all of a side in every group, by the slices that its ranks work on."""

    def __init__(self, shards: Shards, uses: list[list[int]]) -> None:
        self.slices, self.own, self.rank = shards.slices, shards.own, shards.grid.rank
        (_, self.ulysses), near = shards.grid.shape, shards.grid.near
        self.uses = np.full((self.ulysses, max(map(len, uses))), -1, np.int32)
        for member, numbers in enumerate(uses):
            self.uses[member, : len(numbers)] = numbers
        # Hop by hop: the rank of its group that each rank turns to, and what goes there.
        others = [near(1, hop) for hop in range(1, self.ulysses)]
        self.parcels = [(r, self._blocks(self.own, self.uses[r % self.ulysses])) for r in others]

    def _blocks(self, pieces: Ints, slices: Ints) -> Ints:
        """Block numbers of each rank's pieces [n, w] in its slices [n, a]: [n, w * a]."""
        piece, slice_ = pieces[:, :, None], slices[:, None, :]
        present = (piece >= 0) & (slice_ >= 0)
        block = np.where(present, piece * self.slices + slice_, np.int32(-1))
        return block.reshape(len(pieces), -1)

    def all_to_all(self, tensors: tuple[str, ...], back: bool = False) -> tuple[Move, ...]:
        """Pieces go to the ranks of their group that work on a slice, or their sums `back`."""
        return tuple(
            Move(tensors, blocks, *((other, self.rank) if back else (self.rank, other)))
            for other, blocks in self.parcels
        )

    def received(self, tensor: str) -> tuple[InitialCopy, ...]:
        """Returns what the forward pass's all-to-all brought to each rank; OUT was made there."""
        return tuple(InitialCopy((tensor,), blocks, other) for other, blocks in self.parcels)

    def attended(self, wide: int = 1, back: int = 0) -> Ints:
        """The blocks that each rank works on, of one use after the other: [ranks, a, w].

        Of the set of `wide` groups that lies `back` sets before the one of the rank.
        """
        sets = self.own.reshape(len(self.rank) // self.ulysses // wide, -1)
        pieces = sets[(self.rank // (self.ulysses * wide) - back) % len(sets)]
        uses = self.uses[self.rank % self.ulysses]
        return np.stack([self._blocks(pieces, use[:, None]) for use in uses.T], axis=1)
