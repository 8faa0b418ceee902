"""Lifetimes of copies and partial sums, for the verifier, the memory model and programs.

A copy of an input lives from its arrival to its last attend or move on that rank, and occupies a
slot from the step in which it is received: a slot is not read in the step that fills it. Blocks
that a rank owns live throughout and are not counted.
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
Whole = NDArray[np.integer]


def lifetimes(plan: Plan, tensor: str) -> tuple[Ints, Ints]:
    """Returns (step received, step last read) of each copy of an input: int32 [ranks, blocks].

    Received -1: an initial copy; -2: never received, or never read, on that rank. An OUT left by
    the forward pass is read in the first step in which its STATS are readable; these STATS occupy
    a slot from then on.
    """
    copies = Copies(plan, tensor)
    received, last = (np.full((plan.ranks, len(plan.side(tensor)) + 1), -2, np.int32) for _ in "rl")
    for number in range(-1, len(plan.steps) + 1):
        for table, rows in ((received, copies.comes(number)), (last, copies.reads(number))):
            for rank, blocks, _ in rows:
                table[rank[:, None], blocks] = number
    return received[:, :-1], last[:, :-1]


def slots(plan: Plan, tensor: str) -> NDArray[np.int64]:
    """Counts blocks of a tensor that each rank holds but does not own: int64 [steps, ranks]."""
    return occupancy(plan, tensor, np.ones(len(plan.side(tensor)), np.int64))


def occupancy(plan: Plan, tensor: str, weights: Weights) -> NDArray[np.int64]:
    """Returns the total weight of the blocks that `slots` counts: int64 [steps, ranks]."""
    table = np.zeros((len(plan.steps), plan.ranks), np.int64)
    for number, held in held_away(plan, tensor, weights):
        table[number] = held
    return table


def held_away(plan: Plan, tensor: str, weights: Weights) -> Iterator[tuple[int, Weights]]:
    """Yields each step with its row of `occupancy`; in reverse order for copies."""
    held = _accumulated if tensor in ACCUMULATORS[plan.pass_] else _copied
    return held(plan, tensor, weights)


class _Away:
    """The blocks on each rank at one time, and the weight of those that it does not own."""

    def __init__(self, plan: Plan, tensor: str, weights: Weights) -> None:
        self._here = Table(plan, tensor, nothing=True)
        self._owners, self._weight = np.append(plan.side(tensor).owners, -1), np.append(weights, 0)
        self.held = np.zeros(plan.ranks, np.int64)  # weight per rank

    def weight(self, blocks: Whole, counted: Bits | np.bool_) -> Weights:
        """Returns the weight of the counted blocks of each row [n, w]."""
        return np.asarray((self._weight.take(blocks.T) * counted.T).sum(axis=0))

    def add(self, rank: Ints, blocks: Ints) -> None:
        """Adds blocks."""
        entries = self._here.of(rank, blocks)
        fresh = ~self._here[entries]
        if not fresh.any():
            return
        if np.bincount(rank).max() > 1:  # a rank in several rows may name a block twice
            fresh &= ~is_repeat(entries.reshape(-1)).reshape(fresh.shape)
        self._here[entries] = True
        np.add.at(self.held, rank, self.weight(blocks, fresh & self._away(rank, blocks)))

    def take(self, rank: Ints, blocks: Ints) -> Bits:
        """Removes blocks; returns which were absent: bool [n, w]."""
        entries = self._here.of(rank, blocks)
        present = self._here[entries]
        self._here[entries] = False
        np.subtract.at(self.held, rank, self.weight(blocks, present & self._away(rank, blocks)))
        return ~present

    def _away(self, rank: Ints, blocks: Ints) -> Bits:
        return np.asarray(self._owners.take(blocks.T) != rank).T


def _copied(plan: Plan, tensor: str, weights: Weights) -> Iterator[tuple[int, Weights]]:
    """Yields the weight read in a step or later, plus arrivals of the step that are never read."""
    now, copies = _Away(plan, tensor, weights), Copies(plan, tensor)
    for number in reversed(range(len(plan.steps) + 1)):
        for rank, blocks, _ in copies.reads(number):
            now.add(rank, blocks)
        most = now.held.copy()
        for rank, blocks, _ in chain(copies.comes(number), () if number else copies.comes(-1)):
            absent = now.take(rank, blocks)
            if absent.any():
                np.add.at(most, rank, now.weight(blocks, absent))
        if number < len(plan.steps):
            yield number, most


def _accumulated(plan: Plan, tensor: str, weights: Weights) -> Iterator[tuple[int, Weights]]:
    """Yields the weight held, plus arrivals, plus sums that attends start.

    All blocks of a message count on arrival, even zeros, since a message is sent whole.
    """
    now = _Away(plan, tensor, weights)
    for number, step in enumerate(plan.steps):
        sent = [move for move in step.moves if tensor in move.tensors]
        most = now.held.copy()
        for move in sent:
            now.take(move.src, move.blocks)
        most -= now.held
        for attend in step.attends:
            now.add(attend.rank, attended_blocks(attend, tensor))
        most += now.held
        for move in sent:
            np.add.at(most, move.dst, now.weight(move.blocks, np.True_))
            now.add(move.dst, move.blocks)
        yield number, most
