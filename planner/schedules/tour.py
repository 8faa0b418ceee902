"""A tour: blocks of one side visit ranks, and their sums follow one step behind.

step t   rank r attends visits[t, r]      visits[t, r] -> hops[t, r]
         sums of visits[t - 1, r] -> hops[t - 1, r]; after the last visit, to their owner
"""

from collections.abc import Sequence

import numpy as np

from ringloom.planner.ir import ACCUMULATORS, QUERY_SIDE, TENSORS, Attend, Move, Pass, Step
from ringloom.planner.masks.mask import SideName
from ringloom.planner.partitions import Ints


def rotations(blocks: Ints) -> list[Ints]:
    """Returns, for every t, the blocks of the rank t places before each rank: views [ranks, w]."""
    ranks, repeated = len(blocks), np.concatenate([blocks, blocks])
    return [repeated[-t % ranks :][:ranks] for t in range(ranks)]


def travelling_tensors(side: SideName, pass_: Pass) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns the inputs that travel if a side travels in a pass, and the sums of this side."""
    inputs = QUERY_SIDE[pass_] if side == "q" else ("KV",)
    return inputs, tuple(t for t in ACCUMULATORS[pass_] if TENSORS[t].side == side)


def tour(
    side: SideName, stationary: Ints, visits: Sequence[Ints], hops: Sequence[Ints], pass_: Pass
) -> list[Step]:
    """Returns the steps in which each rank attends its own blocks with each of its visits.

    The blocks of a visit are [ranks, w], or [ranks, n, w] to attend in n rectangles. `hops`
    [steps][ranks] are the next ranks of the blocks, and in the last entry the owners of the sums.
    """
    inputs, sums = travelling_tensors(side, pass_)
    joined = [blocks.reshape(len(stationary), -1) for blocks in visits]
    rank, steps = np.arange(len(stationary), dtype=np.int32), list[Step]()
    for t in range(len(visits) + bool(sums)):
        attends, moves = list[Attend](), list[Move]()
        if t < len(visits):
            parts = visits[t].swapaxes(0, 1) if visits[t].ndim == 3 else [visits[t]]
            pairs = ((part, stationary) if side == "q" else (stationary, part) for part in parts)
            attends += [Attend(rank, q, kv) for q, kv in pairs]
        if t < len(visits) - 1:
            moves.append(Move(inputs, joined[t], rank, hops[t]))
        if sums and t:
            moves.append(Move(sums, joined[t - 1], rank, hops[t - 1]))
        steps.append(Step(tuple(attends), tuple(moves)))
    return steps
