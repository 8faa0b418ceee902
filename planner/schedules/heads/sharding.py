"""Head sharding: an all-to-all in each group of ranks gives each rank all tokens of its heads.

    q[c, h]  ->  rank h of the group       c: a piece of the group's tokens, h: a slice of heads

Heads may divide unevenly: KV slices begin and end wherever a query slice does.
"""

from itertools import pairwise

import numpy as np

from ringloom.planner.ir import InitialCopy, Move
from ringloom.planner.layouts import Chunks, Layout, by_heads, cut, sides, split
from ringloom.planner.partitions import Ints, Side, check_places, heads_in_common
from ringloom.planner.schedules.grid import Grid
from ringloom.planner.workload import Workload


def head_slices(work: Workload, parts: int) -> tuple[list[range], list[range]]:
    """Returns query slices, and KV slices that begin and end wherever a query slice does."""
    q = [s for s in cut(work.heads, parts) if len(s)]
    edges = {s.start // work.group for s in q} | {-(-s.stop // work.group) for s in q}
    ends = sorted(edges)
    return q, [range(a, b) for a, b in pairwise(ends)]


class Shards:
    """The blocks of one side, with owners.

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


def make_shards(
    work: Workload, ulysses: int, groups: int, parts: int, layout: Layout
) -> tuple[Shards, Shards, list[list[int]]]:
    """Returns the two sides, with heads in `parts` slices, and the KV slices per query slice."""
    q_slices, kv_slices = head_slices(work, parts)
    queries, keys = sides(work, groups, layout)
    q = Shards(queries, ulysses, groups, q_slices)
    is_same = (queries, q_slices) == (keys, kv_slices)  # reuse cached properties
    kv = q if is_same else Shards(keys, ulysses, groups, kv_slices)
    shared_heads = heads_in_common(q_slices, kv_slices, work.group)
    return q, kv, [np.flatnonzero(heads).tolist() for heads in shared_heads]


class Exchange:
    """The all-to-all of a side in every group; `uses` has the slices that each rank attends."""

    def __init__(self, shards: Shards, uses: list[list[int]]) -> None:
        self.slices, self.own, self.rank = shards.slices, shards.own, shards.grid.rank
        (_, self.ulysses), neighbour = shards.grid.shape, shards.grid.neighbour
        self.uses = np.full((self.ulysses, max(map(len, uses))), -1, np.int32)
        for member, numbers in enumerate(uses):
            self.uses[member, : len(numbers)] = numbers
        # Per hop, for each rank: the receiver in its group, and the blocks to send.
        peers = [neighbour(1, hop) for hop in range(1, self.ulysses)]
        self.parcels = [(r, self._blocks(self.own, self.uses[r % self.ulysses])) for r in peers]

    def _blocks(self, pieces: Ints, slices: Ints) -> Ints:
        """Returns the blocks of each rank's pieces [n, w] in its slices [n, a]: [n, w * a]."""
        piece, slice_ = pieces[:, :, None], slices[:, None, :]
        is_present = (piece >= 0) & (slice_ >= 0)
        block = np.where(is_present, piece * self.slices + slice_, np.int32(-1))
        return block.reshape(len(pieces), -1)

    def all_to_all(self, tensors: tuple[str, ...], reverse: bool = False) -> tuple[Move, ...]:
        """Returns moves that send pieces to ranks by slice, or sums back with `reverse`."""
        return tuple(
            Move(tensors, blocks, *((peer, self.rank) if reverse else (self.rank, peer)))
            for peer, blocks in self.parcels
        )

    def received(self, tensor: str) -> tuple[InitialCopy, ...]:
        """Returns the copies that each rank holds after the all-to-all of the forward pass."""
        return tuple(InitialCopy((tensor,), blocks, peer) for peer, blocks in self.parcels)

    def attended_blocks(self, groups_per_set: int = 1, distance: int = 0) -> Ints:
        """Returns the blocks that each rank attends, by slice: [ranks, a, w].

        The blocks are those of the set of groups that is `distance` sets before the rank's own set.
        """
        sets = self.own.reshape(len(self.rank) // self.ulysses // groups_per_set, -1)
        pieces = sets[(self.rank // (self.ulysses * groups_per_set) - distance) % len(sets)]
        uses = self.uses[self.rank % self.ulysses]
        return np.stack([self._blocks(pieces, use[:, None]) for use in uses.T], axis=1)
