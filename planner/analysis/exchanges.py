"""All-to-alls of heads: messages with some heads of tokens, from or to the owner of the tokens.

inputs   the owner sends different heads of its tokens to several ranks
sums     several ranks send the owner different heads of its tokens

A program packs the parts that it sends, and joins the parts that it receives, in the order of the
ranks: along tokens at one end and along heads at the other. Each end copies all parts, including
the part that stays. A program waits for one exchange before it packs the next.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from ringloom.planner.columns import flatten_blocks
from ringloom.planner.ir import Index, Move, Plan, Step
from ringloom.planner.partitions import Ints

Floats = NDArray[np.float64]


class Exchanges:
    """The all-to-alls of one step, and the bytes that ranks copy when the last message arrives."""

    def __init__(self, plan: Plan, step: Step) -> None:
        self._shares = dict[tuple[str, ...], Floats]()  # per owner, by tensors of a message
        self._bytes, self._left = np.zeros((2, plan.ranks))  # received; messages left, by receiver
        if any(len(plan.partition.side(side).slices) > 1 for side in ("q", "kv")):
            for move in step.joined().moves:
                shares = self._shares[move.tensors] = _shares(plan, move)
                np.add.at(self._left, move.dst, shares[_owners(move)] > 0)

    def split(self, move: Move) -> Iterator[tuple[Move, bool]]:
        """Yields the messages of all-to-alls, with True, then the other messages."""
        if not self._shares:
            yield move, False
            return
        is_exchange = self._shares[move.tensors][_owners(move)] > 0
        yield from (
            (move.select(rows), exchanged)
            for rows, exchanged in ((is_exchange, True), (~is_exchange, False))
            if rows.any()
        )

    def copied(self, move: Move, size: Index) -> Floats:
        """Returns the bytes that each receiver copies when a message arrives: [rows].

        A receiver copies all parts when its last message arrives. `move`: messages of all-to-alls
        in plan order; `size`: their bytes.
        """
        self._bytes[move.dst] += self._shares[move.tensors][_owners(move)] * size
        self._left[move.dst] -= 1
        copied_bytes: Floats = self._bytes[move.dst] * (self._left[move.dst] == 0)
        return copied_bytes


def _owners(move: Move) -> Ints:
    """Returns the rank at the end of each message that owns the tokens in an all-to-all."""
    return move.dst if move.accumulates else move.src


def _shares(plan: Plan, move: Move) -> Floats:
    """Returns, per owner, the bytes copied per byte sent: (k + 1) / k; 0: no all-to-all."""
    side, shares, owners = plan.partition.side(move.side), np.zeros(plan.ranks), _owners(move)
    if len(side.slices) < 2:
        return shares
    rank, block = flatten_blocks(owners, move.blocks)
    _, index, repeats = np.unique(rank * len(side) + block, return_inverse=True, return_counts=True)
    message_count = np.bincount(owners, minlength=plan.ranks)
    is_sent_to_all = (repeats[index] == message_count[rank]) & (message_count[rank] > 1)
    not_exchanging = rank[(side.owners[block] != rank) | is_sent_to_all]
    is_exchange = (message_count > 0) & (np.bincount(not_exchanging, minlength=plan.ranks) == 0)
    shares[is_exchange] = 1 + 1 / message_count[is_exchange]
    return shares
