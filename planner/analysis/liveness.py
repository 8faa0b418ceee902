"""Lifetimes of copies and partial sums, for verifier, memory model and programs alike.

A copy of an input lives from its arrival to its last attend or move on that rank, and takes its
slot from the step in which it is received, for a slot received into is not read in that step.
What a rank owns lives throughout and is not counted here.
"""

from collections.abc import Iterator
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from ringloom.planner.analysis.copies import Copies
from ringloom.planner.analysis.tables import Bits, Table, attended_blocks
from ringloom.planner.columns import again
from ringloom.planner.ir import ACCUMULATORS, Plan
from ringloom.planner.partitions import Ints

Weights = NDArray[np.int64]  # one number per block
Whole = NDArray[np.integer]


def lifetimes(plan: Plan, tensor: str) -> tuple[Ints, Ints]:
    """(received in step, last read in step) of each copy of an input: int32 [ranks, blocks].

    -1 received: there from the start; -2: never received, or never read, on that rank. OUT that
    the forward pass left is read in the step from which on its STATS can be; those it makes take a
    slot from there on.
    """
    copies = Copies(plan, tensor)
    received, last = (np.full((plan.ranks, len(plan.side(tensor)) + 1), -2, np.int32) for _ in "rl")
    for number in range(-1, len(plan.steps) + 1):
        for table, rows in ((received, copies.comes(number)), (last, copies.reads(number))):
            for rank, blocks, _ in rows:
                table[rank[:, None], blocks] = number
    return received[:, :-1], last[:, :-1]


def slots(plan: Plan, tensor: str) -> NDArray[np.int64]:
    """Blocks of a tensor that each rank holds and does not own, by step: int64 [steps, ranks]."""
    return occupancy(plan, tensor, np.ones(len(plan.side(tensor)), np.int64))


def occupancy(plan: Plan, tensor: str, weights: Weights) -> NDArray[np.int64]:
    """Total weight of what `slots` counts, e.g. in bytes: int64 [steps, ranks]."""
    table = np.zeros((len(plan.steps), plan.ranks), np.int64)
    for number, held in held_away(plan, tensor, weights):
        table[number] = held
    return table


def held_away(plan: Plan, tensor: str, weights: Weights) -> Iterator[tuple[int, Weights]]:
    """Yields each step, copies from the last one on, and its row of `occupancy`."""
    held = _accumulated if tensor in ACCUMULATORS[plan.pass_] else _copied
    return held(plan, tensor, weights)


class _Away:
    """The blocks that ranks have at a time, and the weight of those that others own."""

    def __init__(self, plan: Plan, tensor: str, weights: Weights) -> None:
        self._here = Table(plan, tensor, nothing=True)
        self._owners, self._weight = np.append(plan.side(tensor).owners, -1), np.append(weights, 0)
        self.held = np.zeros(plan.ranks, np.int64)  # weight per rank

    def weight(self, blocks: Whole, counted: Bits | np.bool_) -> Weights:
        """Returns the weight of the counted blocks of each row [n, w]."""
        return np.asarray((self._weight.take(blocks.T) * counted.T).sum(axis=0))

    def add(self, rank: Ints, blocks: Ints) -> None:
        """Have these as well."""
        entries = self._here.of(rank, blocks)
        fresh = ~self._here[entries]
        if not fresh.any():
            return
        if np.bincount(rank).max() > 1:  # a rank that occurs twice may have a block twice
            fresh &= ~again(entries.reshape(-1)).reshape(fresh.shape)
        self._here[entries] = True
        np.add.at(self.held, rank, self.weight(blocks, fresh & self._away(rank, blocks)))

    def take(self, rank: Ints, blocks: Ints) -> Bits:
        """Have these no longer; returns which were absent: bool [n, w]."""
        entries = self._here.of(rank, blocks)
        present = self._here[entries]
        self._here[entries] = False
        np.subtract.at(self.held, rank, self.weight(blocks, present & self._away(rank, blocks)))
        return ~present

    def _away(self, rank: Ints, blocks: Ints) -> Bits:
        return np.asarray(self._owners.take(blocks.T) != rank).T


def _copied(plan: Plan, tensor: str, weights: Weights) -> Iterator[tuple[int, Weights]]:
    """Yields what is read in a step or later, and what arrives in it, were it never read."""
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
    """Yields what is held, what arrives beside it, and what attends begin anew.

    Of a message that arrives all is there, zeros too: it came whole.
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
