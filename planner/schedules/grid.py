"""Ranks on a grid, in row-major order: neighbours and exchanges along each axis.

Grid(2, 3)    0 1 2     along axis 1, rank 4 is one place after 3; its row is 3 4 5 and
              3 4 5     its column 1 4
"""

from dataclasses import replace

import numpy as np

from ringloom.planner.errors import PlanError
from ringloom.planner.ir import Attend, InitialCopy, Move, Plan, Step
from ringloom.planner.partitions import Ints, Partition, Side

Moves = tuple[Move, ...]
NODE = 8  # ranks that usually share fast links, so that an all-to-all is cheap


class Grid:
    """Ranks 0, 1, ... in the given shape."""

    def __init__(self, *shape: int) -> None:
        self.shape = shape
        self.ranks = np.arange(np.prod(shape), dtype=np.int32).reshape(shape)
        self.rank = self.ranks.reshape(-1)

    def near(self, axis: int, by: int) -> Ints:
        """Returns, for each rank, the rank `by` places after it along an axis: [ranks]."""
        return np.roll(self.ranks, -by, axis).reshape(-1)

    def joined(self, axis: int, blocks: Ints) -> Ints:
        """Joins for each rank the blocks of all ranks along an axis: [ranks, w] -> [ranks, n w]."""
        table = np.moveaxis(blocks.reshape(*self.shape, -1), axis, -2)
        every = table.reshape(*table.shape[:-2], 1, -1).repeat(self.shape[axis], -2)
        return np.moveaxis(every, -2, axis).reshape(len(blocks), -1)

    def gather(self, axis: int, tensors: tuple[str, ...], blocks: Ints) -> Moves:
        """Sends the inputs of each rank to all other ranks along an axis."""
        away = (self.near(axis, hop) for hop in range(1, self.shape[axis]))
        return tuple(Move(tensors, blocks, self.rank, other) for other in away)

    def scatter(self, axis: int, tensors: tuple[str, ...], blocks: Ints) -> Moves:
        """Sends the sums for each rank's blocks to it from all other ranks along an axis."""
        away = (self.near(axis, hop) for hop in range(1, self.shape[axis]))
        return tuple(Move(tensors, blocks[other], self.rank, other) for other in away)


def divide(ranks: int, by: int, name: str) -> int:
    """Returns ranks / by; raises PlanError unless that is an integer."""
    if by < 1 or ranks % by:
        raise PlanError(f"{name}={by} does not divide {ranks} ranks")
    return ranks // by


def divisor(ranks: int, most: int) -> int:
    """Returns the largest divisor of `ranks` that is at most `most`."""
    return max(d for d in range(1, max(1, most) + 1) if ranks % d == 0)


def relabel(plan: Plan, rank: Ints) -> Plan:
    """Returns the plan with each rank r renamed to rank[r]."""
    rank = rank.reshape(-1)

    def moved(side: Side) -> Side:
        return Side(tuple(replace(b, home=int(rank[b.home])) for b in side.blocks))

    def step(old: Step) -> Step:
        attends = (Attend(rank[a.rank], a.q, a.kv) for a in old.attends)
        moves = (Move(m.tensors, m.blocks, rank[m.src], rank[m.dst]) for m in old.moves)
        return Step(tuple(attends), tuple(moves))

    start = tuple(InitialCopy(h.tensors, h.blocks, rank[h.rank]) for h in plan.start)
    partition = Partition(moved(plan.partition.q), moved(plan.partition.kv))
    return replace(plan, partition=partition, start=start, steps=tuple(map(step, plan.steps)))
