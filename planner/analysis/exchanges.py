"""All-to-alls of heads: messages of some heads of tokens, from or to the rank that owns these.

inputs   the owner gives each of several others some heads of its tokens, not all of them the same
sums     each of several others gives the owner some heads of its tokens, likewise

A program lays the parts that it gives in the order of the ranks, and joins those that it gets,
along tokens here and along heads there: at both ends all is copied, with the part that stays. It
waits for one exchange before it packs the next.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from ringloom.planner.columns import flat
from ringloom.planner.ir import Index, Move, Plan, Step
from ringloom.planner.partitions import Ints

Floats = NDArray[np.float64]


class Exchanges:
    """The all-to-alls of one step: what each rank copies, and when the last of it has come."""

    def __init__(self, plan: Plan, step: Step) -> None:
        self._shares = dict[tuple[str, ...], Floats]()  # of each owner, by what travels together
        self._bytes, self._left = np.zeros((2, plan.ranks))  # so far; messages to come, by receiver
        if any(len(plan.partition.side(side).slices) > 1 for side in ("q", "kv")):
            for move in step.joined().moves:
                shares = self._shares[move.tensors] = _shares(plan, move)
                np.add.at(self._left, move.dst, shares[_owners(move)] > 0)

    def apart(self, move: Move) -> Iterator[tuple[Move, bool]]:
        """Yield the messages that are part of one, and True, then the others."""
        if not self._shares:
            yield move, False
            return
        part = self._shares[move.tensors][_owners(move)] > 0
        yield from (
            (move.only(rows), is_one)
            for rows, is_one in ((part, True), (~part, False))
            if rows.any()
        )

    def copied(self, move: Move, size: Index) -> Floats:
        """Bytes of all that a rank gets, and keeps, with the last message that it gets: [rows].

        Of messages that are part of one, in plan order, of some bytes to a rank each.
        """
        self._bytes[move.dst] += self._shares[move.tensors][_owners(move)] * size
        self._left[move.dst] -= 1
        last: Floats = self._bytes[move.dst] * (self._left[move.dst] == 0)
        return last


def _owners(move: Move) -> Ints:
    """The end of each message that would own the tokens in an all-to-all."""
    return move.dst if move.accumulates else move.src


def _shares(plan: Plan, move: Move) -> Floats:
    """Bytes, with those that stay, per byte that travels: k + 1 parts to k; 0 for no all-to-all."""
    side, shares, ends = plan.partition.side(move.side), np.zeros(plan.ranks), _owners(move)
    if len(side.slices) < 2:
        return shares
    rank, block = flat(ends, move.blocks)
    _, at, times = np.unique(rank * len(side) + block, return_inverse=True, return_counts=True)
    others = np.bincount(ends, minlength=plan.ranks)
    by_all = (times[at] == others[rank]) & (others[rank] > 1)
    other = rank[(side.owners[block] != rank) | by_all]
    is_one = (others > 0) & (np.bincount(other, minlength=plan.ranks) == 0)
    shares[is_one] = 1 + 1 / others[is_one]
    return shares
