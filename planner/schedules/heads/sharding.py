"""Head sharding: an all-to-all in each group of ranks gives each rank all tokens of its heads.

    q[c, h]  ->  rank h of the group       c: pieces of the group's tokens, h: slices of the heads

Heads need not divide evenly: KV heads are cut wherever a query slice begins or ends.
"""

from itertools import pairwise

import numpy as np

from ringloom.planner.ir import InitialCopy, Move
from ringloom.planner.layouts import Chunks, Layout, by_heads, cut, sides, split
from ringloom.planner.partitions import Ints, Side, check_places, heads_in_common
from ringloom.planner.schedules.grid import Grid
from ringloom.planner.workload import Workload


def head_slices(work: Workload, parts: int) -> tuple[list[range], list[range]]:
    """Returns query slices, and KV slices cut wherever a query slice begins or ends."""
    q = [s for s in cut(work.heads, parts) if len(s)]
    edges = {s.start // work.group for s in q} | {-(-s.stop // work.group) for s in q}
    ends = sorted(edges)
    return q, [range(a, b) for a, b in pairwise(ends)]


class Shards:
    """The blocks of one side and their owners.

    `pieces` belong to groups of `ulysses` ranks; each rank of a group owns a part of each piece.
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
    """Returns both sides with heads in `parts` slices, and the KV slices of each query slice."""
    q_slices, kv_slices = head_slices(work, parts)
    queries, keys = sides(work, groups, layout)
    q = Shards(queries, ulysses, groups, q_slices)
    same = (queries, q_slices) == (keys, kv_slices)  # one object: cached properties are shared
    kv = q if same else Shards(keys, ulysses, groups, kv_slices)
    common = heads_in_common(q_slices, kv_slices, work.group)
    return q, kv, [np.flatnonzero(heads).tolist() for heads in common]


class Exchange:
    """The all-to-all of a side in every group, given the slices that each rank works on."""

    def __init__(self, shards: Shards, uses: list[list[int]]) -> None:
        self.slices, self.own, self.rank = shards.slices, shards.own, shards.grid.rank
        (_, self.ulysses), near = shards.grid.shape, shards.grid.near
        self.uses = np.full((self.ulysses, max(map(len, uses))), -1, np.int32)
        for member, numbers in enumerate(uses):
            self.uses[member, : len(numbers)] = numbers
        # Per hop: the rank of its group that each rank sends to, and the blocks it sends.
        others = [near(1, hop) for hop in range(1, self.ulysses)]
        self.parcels = [(r, self._blocks(self.own, self.uses[r % self.ulysses])) for r in others]

    def _blocks(self, pieces: Ints, slices: Ints) -> Ints:
        """Returns block numbers of each rank's pieces [n, w] in its slices [n, a]: [n, w * a]."""
        piece, slice_ = pieces[:, :, None], slices[:, None, :]
        present = (piece >= 0) & (slice_ >= 0)
        block = np.where(present, piece * self.slices + slice_, np.int32(-1))
        return block.reshape(len(pieces), -1)

    def all_to_all(self, tensors: tuple[str, ...], back: bool = False) -> tuple[Move, ...]:
        """Sends pieces to the ranks of their group by slice or, with `back`, their sums back."""
        return tuple(
            Move(tensors, blocks, *((other, self.rank) if back else (self.rank, other)))
            for other, blocks in self.parcels
        )

    def received(self, tensor: str) -> tuple[InitialCopy, ...]:
        """Returns what each rank holds after the all-to-all of the forward pass."""
        return tuple(InitialCopy((tensor,), blocks, other) for other, blocks in self.parcels)

    def attended(self, wide: int = 1, back: int = 0) -> Ints:
        """Returns the blocks that each rank works on, by slice: [ranks, a, w].

        They are those of the set of `wide` groups that lies `back` sets before the rank's own.
        """
        sets = self.own.reshape(len(self.rank) // self.ulysses // wide, -1)
        pieces = sets[(self.rank // (self.ulysses * wide) - back) % len(sets)]
        uses = self.uses[self.rank % self.ulysses]
        return np.stack([self._blocks(pieces, use[:, None]) for use in uses.T], axis=1)
