"""Lifetimes of copies and partial sums, for the verifier, the memory model and programs.

A copy of an input lives from its arrival to its last attend or move on the rank, and occupies a
slot from the step in which it arrives: the step that fills a slot does not read it. Counts exclude
the blocks that a rank owns, which live throughout.
"""

from collections.abc import Iterator
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from ringloom.planner.analysis.copies import Copies
from ringloom.planner.analysis.tables import Bits, Table, attended_blocks
from ringloom.planner.columns import is_repeat
from ringloom.planner.ir import ACCUMULATORS, Plan
from ringloom.planner.partitions import Ints

Weights = NDArray[np.int64]  # one number per block
Integers = NDArray[np.integer]


def lifetimes(plan: Plan, tensor: str) -> tuple[Ints, Ints]:
    """Returns (step received, step last read) of each copy of an input: int32 [ranks, blocks].

    Received -1: an initial copy; -2: never received, or never read, on the rank. A rank reads an
    OUT of the forward pass in the first step in which its STATS are readable; these STATS occupy a
    slot from then on.
    """
    copies = Copies(plan, tensor)
    received, last = (np.full((plan.ranks, len(plan.side(tensor)) + 1), -2, np.int32) for _ in "rl")
    for number in range(-1, len(plan.steps) + 1):
        for table, rows in ((received, copies.comes(number)), (last, copies.reads(number))):
            for rank, blocks, _ in rows:
                table[rank[:, None], blocks] = number
    return received[:, :-1], last[:, :-1]


def slots(plan: Plan, tensor: str) -> NDArray[np.int64]:
    """Counts the blocks of a tensor that each rank holds and does not own: int64 [steps, ranks]."""
    return occupancy(plan, tensor, np.ones(len(plan.side(tensor)), np.int64))


def occupancy(plan: Plan, tensor: str, weights: Weights) -> NDArray[np.int64]:
    """Returns the total weight of the blocks that `slots` counts: int64 [steps, ranks]."""
    table = np.zeros((len(plan.steps), plan.ranks), np.int64)
    for number, weights_of in held_away(plan, tensor, weights):
        table[number] = weights_of
    return table


def held_away(plan: Plan, tensor: str, weights: Weights) -> Iterator[tuple[int, Weights]]:
    """Yields the number of each step and the row of `occupancy`; for copies, in reverse order."""
    weights_of = _sums_weight if tensor in ACCUMULATORS[plan.pass_] else _copies_weight
    return weights_of(plan, tensor, weights)


class _State:
    """The blocks on each rank at one time, and the weight of the blocks that it does not own."""

    def __init__(self, plan: Plan, tensor: str, weights: Weights) -> None:
        self._is_present = Table(plan, tensor, default=True)
        self._owners, self._weight = np.append(plan.side(tensor).owners, -1), np.append(weights, 0)
        self.held = np.zeros(plan.ranks, np.int64)  # weight per rank

    def weight(self, blocks: Integers, counted: Bits | np.bool_) -> Weights:
        """Returns the weight of the counted blocks of each row [n, w]."""
        return np.asarray((self._weight.take(blocks.T) * counted.T).sum(axis=0))

    def add(self, rank: Ints, blocks: Ints) -> None:
        """Adds blocks to ranks."""
        entries = self._is_present.of(rank, blocks)
        is_new = ~self._is_present[entries]
        if not is_new.any():
            return
        if np.bincount(rank).max() > 1:  # a rank in several rows may name a block twice
            is_new &= ~is_repeat(entries.reshape(-1)).reshape(is_new.shape)
        self._is_present[entries] = True
        np.add.at(self.held, rank, self.weight(blocks, is_new & self._away(rank, blocks)))

    def remove(self, rank: Ints, blocks: Ints) -> Bits:
        """Removes blocks from ranks; returns True for absent blocks: bool [n, w]."""
        entries = self._is_present.of(rank, blocks)
        is_present = self._is_present[entries]
        self._is_present[entries] = False
        np.subtract.at(self.held, rank, self.weight(blocks, is_present & self._away(rank, blocks)))
        return ~is_present

    def _away(self, rank: Ints, blocks: Ints) -> Bits:
        return np.asarray(self._owners.take(blocks.T) != rank).T


def _copies_weight(plan: Plan, tensor: str, weights: Weights) -> Iterator[tuple[int, Weights]]:
    """Yields the weight of copies read in a step or later, and of arrivals that are never read."""
    state, copies = _State(plan, tensor, weights), Copies(plan, tensor)
    for number in reversed(range(len(plan.steps) + 1)):
        for rank, blocks, _ in copies.reads(number):
            state.add(rank, blocks)
        total = state.held.copy()
        for rank, blocks, _ in chain(copies.comes(number), () if number else copies.comes(-1)):
            is_absent = state.remove(rank, blocks)
            if is_absent.any():
                np.add.at(total, rank, state.weight(blocks, is_absent))
        if number < len(plan.steps):
            yield number, total


def _sums_weight(plan: Plan, tensor: str, weights: Weights) -> Iterator[tuple[int, Weights]]:
    """Yields the weight of sums held, of arrivals, and of sums that attends start.

    All blocks of a message count on arrival, even zeros, since a rank sends the whole message.
    """
    state = _State(plan, tensor, weights)
    for number, step in enumerate(plan.steps):
        moves = [move for move in step.moves if tensor in move.tensors]
        total = state.held.copy()
        for move in moves:
            state.remove(move.src, move.blocks)
        total -= state.held
        for attend in step.attends:
            state.add(attend.rank, attended_blocks(attend, tensor))
        total += state.held
        for move in moves:
            np.add.at(total, move.dst, state.weight(move.blocks, np.True_))
            state.add(move.dst, move.blocks)
        yield number, total
