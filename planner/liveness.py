"""When each copy and each partial result lives where: one answer for everybody who asks.

A copy of an input lives from its arrival to its last attend or move on that rank, and takes its
slot from the step in which it is received, for a slot received into is not read in that step.
Home inputs, and accumulators at home, live throughout and are not counted here.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from planner.batches import attended, sent
from planner.ir import READS, TENSORS, Index, Plan
from planner.partitions import Ints

Weights = NDArray[np.int64]  # one number per block
AT_START = -1
SLAB = 1 << 20  # copies looked at at a time


def lifetimes(plan: Plan, tensor: str) -> tuple[Ints, Ints]:
    """(received in step, last read in step) of each copy of an input: int32 [ranks, blocks].

    -1 received: there from the start; -2: never received, or never read, on that rank.
    """
    shape = plan.ranks, len(plan.side(tensor))
    received, last = np.full(shape, -2, np.int32), np.full(shape, -2, np.int32)
    for held in plan.start:
        if tensor in held.tensors:
            block, rank = held.flat()
            received[rank, block] = AT_START
    for block, _, dst, step in sent(plan, tensor):
        received[dst, block] = step  # a rank gets a block once
    for block, src, _, step in sent(plan, tensor):
        last[src, block] = step  # of repeated ones, in ascending order, the last stays
    if tensor in READS[plan.pass_]:
        attends = np.full(shape, -2, np.int32)
        for block, rank, step in attended(plan, TENSORS[tensor].side):
            attends[rank, block] = step
        np.maximum(last, attends, out=last)
    return received, last


def slots(plan: Plan, tensor: str) -> NDArray[np.int64]:
    """Blocks of a tensor away from home that each rank holds in each step: int64 [steps, ranks]."""
    return occupancy(plan, tensor, np.ones(len(plan.side(tensor)), np.int64))


def occupancy(plan: Plan, tensor: str, weights: Weights) -> NDArray[np.int64]:
    """Total weight of what `slots` counts, e.g. in bytes: int64 [steps, ranks]."""
    if tensor in READS[plan.pass_]:
        return _copied(plan, tensor, weights)
    return np.array(list(_accumulated(plan, tensor, weights)), np.int64).reshape(-1, plan.ranks)


def _copied(plan: Plan, tensor: str, weights: Weights) -> NDArray[np.int64]:
    """The copies held in each step, incoming ones included; a slab of ranks at a time."""
    received, last = lifetimes(plan, tensor)
    steps = len(plan.steps)
    held = np.zeros((steps, plan.ranks), np.int64)
    height = max(1, SLAB // max(1, len(weights)))
    for low in range(0, plan.ranks if steps else 0, height):
        rank, block = np.nonzero(received[low : low + height] > -2)
        first = np.maximum(received[low + rank, block], 0)
        over = np.maximum(last[low + rank, block], first) + 1  # never read: gone at once
        ranks = len(received[low : low + height])
        size, weight = (steps + 1) * ranks, weights[block]
        begun = np.bincount(first.astype(np.int64) * ranks + rank, weight, size)
        ended = np.bincount(over.astype(np.int64) * ranks + rank, weight, size)
        change = (begun - ended).reshape(steps + 1, ranks)[:-1]  # exact: far below 2**53
        held[:, low : low + height] = np.cumsum(change, axis=0)
    return held


def _accumulated(plan: Plan, tensor: str, weights: Weights) -> Iterator[NDArray[np.int64]]:
    """Per step: what is held, what arrives beside it, and what attends begin anew."""
    side = plan.side(tensor)
    filled = np.zeros((plan.ranks, len(side)), bool)
    held = np.zeros(plan.ranks, np.int64)

    def add(rank: Index, block: Index, sign: int = 1) -> None:
        away = side.homes[block] != rank
        np.add.at(held, rank[away], sign * weights[block[away]])

    for step in plan.steps:
        handed = [m.flat() for m in step.moves if tensor in m.tensors]
        for block, src, _ in handed:
            filled[src, block] = False
        outgoing = held.copy()
        for block, src, _ in handed:
            add(src, block, -1)
        begun = held.copy()
        for attend in step.attends:
            block, rank = attend.flat(TENSORS[tensor].side)
            new = ~filled[rank, block]
            filled[rank[new], block[new]] = True
            add(rank[new], block[new])
        peak = outgoing + held - begun
        for block, _, dst in handed:
            np.add.at(peak, dst, weights[block])
            new = ~filled[dst, block]
            filled[dst[new], block[new]] = True
            add(dst[new], block[new])
        yield peak
