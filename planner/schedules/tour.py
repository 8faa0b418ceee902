"""A tour: blocks of one side visit ranks; their sums follow one step behind.

step t   rank r attends visits[t, r]      they travel on to hops[t, r]
         sums of visits[t - 1, r] -> hops[t - 1, r]; after the last visit, to their owner
"""

from collections.abc import Sequence

import numpy as np

from ringloom.planner.ir import ACCUMULATORS, QUERY_SIDE, TENSORS, Attend, Move, Pass, Step
from ringloom.planner.masks.mask import SideName
from ringloom.planner.partitions import Ints


def rotations(blocks: Ints) -> list[Ints]:
    """Returns, for every t, views of the blocks [ranks, w] of the rank t places before each."""
    ranks, doubled = len(blocks), np.concatenate([blocks, blocks])
    return [doubled[-t % ranks :][:ranks] for t in range(ranks)]


def travelling_tensors(side: SideName, pass_: Pass) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns the inputs that travel with a side in a pass, and the sums that it accumulates."""
    inputs = QUERY_SIDE[pass_] if side == "q" else ("KV",)
    return inputs, tuple(t for t in ACCUMULATORS[pass_] if TENSORS[t].side == side)


def tour(
    side: SideName, stays: Ints, visits: Sequence[Ints], hops: Sequence[Ints], pass_: Pass
) -> list[Step]:
    """Returns the steps in which each rank attends its own blocks with its visitors: [ranks, w].

    Visitors [ranks, n, w] travel together and are attended in n rectangles. `hops` [steps][ranks]
    gives the visitors' next ranks, the last entry the owners of their sums.
    """
    inputs, sums = travelling_tensors(side, pass_)
    together = [blocks.reshape(len(stays), -1) for blocks in visits]
    rank, steps = np.arange(len(stays), dtype=np.int32), list[Step]()
    for t in range(len(visits) + bool(sums)):
        attends, moves = list[Attend](), list[Move]()
        if t < len(visits):
            parts = visits[t].swapaxes(0, 1) if visits[t].ndim == 3 else [visits[t]]
            pairs = ((part, stays) if side == "q" else (stays, part) for part in parts)
            attends += [Attend(rank, q, kv) for q, kv in pairs]
        if t < len(visits) - 1:
            moves.append(Move(inputs, together[t], rank, hops[t]))
        if sums and t:
            moves.append(Move(sums, together[t - 1], rank, hops[t - 1]))
        steps.append(Step(tuple(attends), tuple(moves)))
    return steps
