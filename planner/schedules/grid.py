"""Ranks on a grid, in row-major order: neighbours and exchanges along each axis.

Grid(2, 3)    0 1 2     along axis 1, rank 4 is one place after rank 3;
              3 4 5     the row of rank 4 is 3 4 5, its column 1 4
"""

from dataclasses import replace

import numpy as np

from ringloom.planner.errors import PlanError
from ringloom.planner.ir import Attend, InitialCopy, Move, Plan, Step
from ringloom.planner.partitions import Ints, Partition, Side

Moves = tuple[Move, ...]
NODE = 8  # ranks that usually share fast links, which makes an all-to-all cheap


class Grid:
    """Ranks 0, 1, ... in the given shape."""

    def __init__(self, *shape: int) -> None:
        self.shape = shape
        self.ranks = np.arange(np.prod(shape), dtype=np.int32).reshape(shape)
        self.rank = self.ranks.reshape(-1)

    def neighbour(self, axis: int, distance: int) -> Ints:
        """Returns, for each rank, the rank at a distance after it along an axis: [ranks]."""
        return np.roll(self.ranks, -distance, axis).reshape(-1)

    def gather_blocks(self, axis: int, blocks: Ints) -> Ints:
        """Returns, for each rank, the blocks of all ranks along an axis: [ranks, n * w]."""
        table = np.moveaxis(blocks.reshape(*self.shape, -1), axis, -2)
        repeated = table.reshape(*table.shape[:-2], 1, -1).repeat(self.shape[axis], -2)
        return np.moveaxis(repeated, -2, axis).reshape(len(blocks), -1)

    def gather(self, axis: int, tensors: tuple[str, ...], blocks: Ints) -> Moves:
        """Returns moves that send the inputs of each rank to all other ranks along an axis."""
        peers = (self.neighbour(axis, hop) for hop in range(1, self.shape[axis]))
        return tuple(Move(tensors, blocks, self.rank, peer) for peer in peers)

    def scatter(self, axis: int, tensors: tuple[str, ...], blocks: Ints) -> Moves:
        """Returns moves that send each rank the sums of its blocks from all others on an axis."""
        peers = (self.neighbour(axis, hop) for hop in range(1, self.shape[axis]))
        return tuple(Move(tensors, blocks[peer], self.rank, peer) for peer in peers)


def divide(ranks: int, parts: int, name: str) -> int:
    """Returns ranks / parts; raises PlanError unless the quotient is an integer."""
    if parts < 1 or ranks % parts:
        raise PlanError(f"{name}={parts} does not divide {ranks} ranks")
    return ranks // parts


def largest_divisor(ranks: int, most: int) -> int:
    """Returns the largest divisor of `ranks` that is at most `most`."""
    return max(d for d in range(1, max(1, most) + 1) if ranks % d == 0)


def relabel(plan: Plan, rank: Ints) -> Plan:
    """Returns the plan with each rank r renamed to rank[r]."""
    rank = rank.reshape(-1)

    def relabel_side(side: Side) -> Side:
        return Side(tuple(replace(b, home=int(rank[b.home])) for b in side.blocks))

    def relabel_step(step: Step) -> Step:
        attends = (Attend(rank[a.rank], a.q, a.kv) for a in step.attends)
        moves = (Move(m.tensors, m.blocks, rank[m.src], rank[m.dst]) for m in step.moves)
        return Step(tuple(attends), tuple(moves))

    start = tuple(InitialCopy(h.tensors, h.blocks, rank[h.rank]) for h in plan.start)
    partition = Partition(relabel_side(plan.partition.q), relabel_side(plan.partition.kv))
    return replace(
        plan, partition=partition, start=start, steps=tuple(map(relabel_step, plan.steps))
    )
