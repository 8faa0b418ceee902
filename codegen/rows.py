"""rows   what a schedule's rule yields: nodes by columns, one row per rank or message.

These few definitions, and the rules made of them, are written into emitted programs as they stand.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.signedinteger[Any]]
Flags = NDArray[np.bool_]


class Attend(NamedTuple):
    """In `step`, on `rank` [n], q blocks [n, a] attend kv blocks [n, b]; -1 is no block."""

    step: int
    rank: Ints
    q: Ints
    kv: Ints


class Move(NamedTuple):
    """In `step`, `blocks` [n, w] of `tensors` go from `src` [n] to `dst` [n]; -1 is no block."""

    step: int
    tensors: tuple[str, ...]
    blocks: Ints
    src: Ints
    dst: Ints


class Held(NamedTuple):
    """Copies of `tensors` that are there before the first step: `blocks` [n, w] on `rank` [n]."""

    tensors: tuple[str, ...]
    blocks: Ints
    rank: Ints


Rows = Iterator[Attend | Move | Held]


def rectangles(live: Flags, q: Ints, kv: Ints) -> tuple[Ints, Ints]:
    """Rectangles q[r] x kv[s] of blocks q [n, a] and kv [m, b] without those that have no live tile
    in them, in row r * m + s of q [n * m, a] and kv [n * m, b]; live: [q, kv] by blocks."""
    live = np.pad(live, (0, 1))  # block -1 sees nothing
    uses = np.take(live[q].any(axis=1), kv, axis=1)
    used = np.take(live.T[kv].any(axis=1).T, q, axis=0).swapaxes(1, 2)
    kept = np.where(used, q[:, None], -1), np.where(uses, kv, -1)
    return kept[0].reshape(-1, q.shape[1]), kept[1].reshape(-1, kv.shape[1])


def around(
    rounds: list[list[Attend]],
    side: str,
    travels: tuple[str, ...],
    adds: str,
    left: Ints,
    homes: Ints,
    hop: int = 1,
) -> Rows:
    """Blocks of one side go `hop` ranks on per round, `adds`, if any, one step behind them; as many
    ranks as are `left` add to each of the blocks that are in each place at first."""
    rank, first = rounds[0][0].rank, rounds[0][0].step
    ahead = (rank + hop) % len(rank)
    parts = [[getattr(attend, side) for attend in attends] for attends in rounds]
    here = list(map(np.hstack, parts))
    here.append(np.full_like(here[0], -1))
    wanted = [blocks.take(ahead, axis=0) for blocks in here[1:]]
    left, homes = left.astype(np.int32), homes.astype(np.int32)  # as blocks and ranks
    sums, behind = Sums(adds, left, homes), (rank - hop) % len(rank)
    for t in range(len(rounds) + bool(adds)):
        if t < len(rounds) - 1:
            pair = here[t], wanted[t]
            yield from relay(first + t, travels, *pair, rank, ahead, homes)
        if adds and t > 0:
            pair = here[t - 1], wanted[t - 1]
            yield from sums.hand_over(first + t, *pair, rank, ahead)
            sums.follow(behind)
        if t < len(rounds):
            yield from rounds[t]


def relay(
    step: int,
    tensors: tuple[str, ...],
    here: Ints,
    wanted: Ints,
    src: Ints,
    dst: Ints,
    homes: Ints,
) -> Iterator[Move]:
    """Copies of the blocks that `dst` wants go there from `src` if it attends them or is their
    home, else from their home; both [n, w], -1 is a block that is not attended."""
    if here.min() >= 0:
        yield Move(step, tensors, wanted, src, dst)
        return
    home = homes.take(wanted)
    there = (here >= 0) | (home == src[:, None])
    yield Move(step, tensors, np.where(there, wanted, -1), src, dst)
    jump = ~there & (wanted >= 0)
    if jump.any():
        block, src, dst = wanted[jump], home[jump], dst[jump.nonzero()[0]]
        yield Move(step, tensors, block[:, None], src, dst)


class Sums:
    """Running sums that follow their blocks around a ring.

    A sum goes on to the next rank that adds to it, and home after the last one.
    """

    def __init__(self, tensor: str, left: Ints, homes: Ints) -> None:
        self.tensor, self.homes = tensor, homes
        # Of the block in each place: how many ranks have yet to add to it, and who has its sum.
        self.left, self.holder = left, np.full_like(left, -1)

    def hand_over(
        self,
        step: int,
        here: Ints,
        wanted: Ints,
        src: Ints,
        dst: Ints,
    ) -> Iterator[Move]:
        """Messages when blocks go from src to dst, after src added to those that are `here` [n, w]
        and before dst adds to those `wanted` [n, w]."""
        if min(here.min(), wanted.min()) >= 0:  # all go on and are added to
            yield Move(step, (self.tensor,), wanted, src, dst)
            self.left = self.left - 1
            return
        block, added, rank = np.maximum(here, wanted), here >= 0, src[:, None]
        left, holder = self.left - added, np.where(added, rank, self.holder)
        onward = (wanted >= 0) & (holder >= 0)
        there = np.where(onward, dst[:, None], self.homes.take(block))
        sent = (onward | (added & (left == 0))) & (holder != there)
        hop = sent & (holder == rank) & (there == dst[:, None])
        yield Move(step, (self.tensor,), np.where(hop, block, -1), src, dst)
        jump = sent & ~hop
        if jump.any():
            block, src, dst = block[jump], holder[jump], there[jump]
            yield Move(step, (self.tensor,), block[:, None], src, dst)
        self.left, self.holder = left, holder

    def follow(self, behind: Ints) -> None:
        """The blocks are now in the places ahead; behind: where each of these came from."""
        self.left, self.holder = self.left.take(behind, 0), self.holder.take(behind, 0)
