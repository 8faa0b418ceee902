"""Lifetimes of copies and partial sums, for verifier, memory model and programs alike.

A copy of an input lives from its arrival to its last attend or move on that rank, and takes its
slot from the step in which it is received, for a slot received into is not read in that step.
Home inputs, and accumulators at home, live throughout and are not counted here.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from planner.analysis.marks import attended_blocks, places
from planner.columns import again, rowwise
from planner.ir import ACCUMULATORS, INPUTS, Held, Plan
from planner.partitions import Ints

Weights = NDArray[np.int64]  # one number per block
Whole = NDArray[np.integer]
AT_START = -1
SLAB = 1 << 20  # copies looked at at a time


def readable(held: Held) -> tuple[str, ...]:
    """The inputs that attends may read of a held copy; with DOUT beside it, OUT makes STATS."""
    return ("STATS",) if held.tensors == ("OUT",) else held.tensors


def lifetimes(plan: Plan, tensor: str) -> tuple[Ints, Ints]:
    """(received in step, last read in step) of each copy of an input: int32 [ranks, blocks].

    -1 received: there from the start; -2: never received, or never read, on that rank. OUT that
    the forward pass left is read in the step from which on its STATS can be; those it makes take a
    slot from there on.
    """
    received, last = (np.full((plan.ranks, len(plan.side(tensor)) + 1), -2, np.int32) for _ in "rl")
    for held in plan.start:
        if tensor in held.tensors:
            block, rank = held.flat()
            received[rank, block] = AT_START
    _walk(plan, tensor, received.reshape(-1), last.reshape(-1))
    received, last = received[:, :-1], last[:, :-1]
    if tensor in ("OUT", "STATS") and any(h.tensors == ("OUT",) for h in plan.start):
        _make_stats(plan, tensor, received, last)
    return received, last


def _walk(plan: Plan, tensor: str, received: Ints, last: Ints) -> None:
    """Note when each copy arrives, which it does once, and its last read."""
    attended = tensor in INPUTS[plan.pass_]
    for number, step in enumerate(plan.steps):
        for move in step.moves:
            if tensor in move.tensors:
                received[places(plan, tensor, move.dst, move.blocks)] = number
                last[places(plan, tensor, move.src, move.blocks)] = number
        for attend in step.attends if attended else ():
            last[places(plan, tensor, attend.rank, attended_blocks(attend, tensor))] = number


def _make_stats(plan: Plan, tensor: str, received: Ints, last: Ints) -> None:
    """Note STATS computed from initial copies of OUT: in the step after DOUT arrives."""
    dout, _ = lifetimes(plan, "DOUT")
    for held in plan.start:
        if held.tensors == ("OUT",):
            block, rank = held.flat()
            comes = dout[rank, block]
            block, rank = block[comes > -2], rank[comes > -2]
            (received if tensor == "STATS" else last)[rank, block] = comes[comes > -2] + 1


def slots(plan: Plan, tensor: str) -> NDArray[np.int64]:
    """Blocks of a tensor away from home that each rank holds in each step: int64 [steps, ranks]."""
    return occupancy(plan, tensor, np.ones(len(plan.side(tensor)), np.int64))


def occupancy(plan: Plan, tensor: str, weights: Weights) -> NDArray[np.int64]:
    """Total weight of what `slots` counts, e.g. in bytes: int64 [steps, ranks]."""
    if tensor not in ACCUMULATORS[plan.pass_]:
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
    """Per step: what is held, what arrives beside it, and what attends begin anew.

    Of a message that arrives all is there, zeros too: it came whole.
    """
    side = plan.side(tensor)
    filled = np.zeros((plan.ranks, len(side) + 1), bool)  # one more: what block -1 finds
    bits, held = filled.reshape(-1), np.zeros(plan.ranks, np.int64)
    homes, weight = np.append(side.homes, -1), np.append(weights, 0)

    def total(rank: Whole, blocks: Whole, of: NDArray[np.bool_] | bool, home: bool) -> Weights:
        """Weight per rank of some blocks of a node, with or without those at home."""
        counted = np.where(of, weight[blocks], 0)
        if not home:
            counted = counted * (homes[blocks] != rank[:, None])
        return np.bincount(rank, rowwise(np.add, counted), plan.ranks).astype(np.int64)  # exact

    def fill(rank: Ints, blocks: Ints) -> Weights:
        """Have these; the weight per rank of what was not there before and is not at home."""
        entries = places(plan, tensor, rank, blocks)
        fresh = ~bits[entries]
        if (rank[1:] <= rank[:-1]).any():  # a rank may occur twice, with the same block
            fresh.reshape(-1)[again(entries.reshape(-1))] = False
        bits[entries] = True
        filled[:, -1] = False
        return total(rank, blocks, fresh, home=False)

    for step in plan.steps:
        handed = [m for m in step.moves if tensor in m.tensors]
        outgoing = held.copy()
        for move in handed:
            entries = places(plan, tensor, move.src, move.blocks)
            held -= total(move.src, move.blocks, bits[entries], home=False)
            bits[entries] = False
        begun = held.copy()
        for attend in step.attends:
            held += fill(attend.rank, attended_blocks(attend, tensor))
        peak = outgoing + held - begun
        for move in handed:
            peak += total(move.dst, move.blocks, True, home=True)
            held += fill(move.dst, move.blocks)
        yield peak
