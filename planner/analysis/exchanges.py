"""All-to-alls of heads: messages with some heads of tokens, from or to the owner of the tokens.

inputs   the owner sends some heads of its tokens to each of several ranks, not the same to all
sums     each of several ranks sends the owner some heads of its tokens, likewise

A program packs the parts that it sends in the order of the ranks, and joins those that it receives,
along tokens at one end and along heads at the other. Both ends copy everything, including the part
that stays. A program waits for one exchange before it packs the next.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from ringloom.planner.columns import flat
from ringloom.planner.ir import Index, Move, Plan, Step
from ringloom.planner.partitions import Ints

Floats = NDArray[np.float64]


class Exchanges:
    """The all-to-alls of one step: what each rank copies once its last message has arrived."""

    def __init__(self, plan: Plan, step: Step) -> None:
        self._shares = dict[tuple[str, ...], Floats]()  # per owner, by tensors of a message
        self._bytes, self._left = np.zeros((2, plan.ranks))  # received; messages left, by receiver
        if any(len(plan.partition.side(side).slices) > 1 for side in ("q", "kv")):
            for move in step.joined().moves:
                shares = self._shares[move.tensors] = _shares(plan, move)
                np.add.at(self._left, move.dst, shares[_owners(move)] > 0)

    def apart(self, move: Move) -> Iterator[tuple[Move, bool]]:
        """Yield the messages that belong to an all-to-all, with True, then the others."""
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
        """Returns the bytes that each message makes its receiver copy: [rows].

        0 but for the last message of a receiver, which makes it copy all it received and kept.
        `move`: messages of all-to-alls in plan order; `size`: their bytes.
        """
        self._bytes[move.dst] += self._shares[move.tensors][_owners(move)] * size
        self._left[move.dst] -= 1
        last: Floats = self._bytes[move.dst] * (self._left[move.dst] == 0)
        return last


def _owners(move: Move) -> Ints:
    """Returns the end of each message that would own the tokens in an all-to-all."""
    return move.dst if move.accumulates else move.src


def _shares(plan: Plan, move: Move) -> Floats:
    """Returns, per owner, bytes copied per byte sent: (k + 1) / k; 0 without an all-to-all."""
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
