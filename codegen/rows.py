"""rows   what a schedule's rule yields: nodes by columns, one row per rank or message.

These few definitions, and the rules made of them, are written into emitted programs as they stand.
"""

from collections.abc import Iterable, Iterator
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


def without_dead(attends: Iterable[Attend], live: Flags) -> list[Attend]:
    """Rectangles without the blocks that have no live tile in them; live: [q, kv] by blocks."""
    kept = []
    for step, rank, q, kv in attends:
        left, right = q.T[:, None], kv.T[None, :]
        tile = live.take(left * live.shape[1] + right, mode="wrap")  # [a, b, n]
        tile &= (left >= 0) & (right >= 0)
        q = np.where(tile.any(axis=1).T, q, -1)
        kv = np.where(tile.any(axis=0).T, kv, -1)
        kept.append(Attend(step, rank, q, kv))
    return kept


def users(attends: list[Attend], side: str, ranks: int, blocks: int) -> Flags:
    """Who attends with which block: [ranks, blocks + 1]; the last column answers for -1."""
    table = np.zeros((ranks, blocks + 1), bool)
    for attend in attends:
        table[attend.rank[:, None], getattr(attend, side)] = True
    table[:, -1] = False
    return table


def at_home(table: Flags, homes: Ints) -> Flags:
    """The same table with every block in use on its home rank."""
    table = table.copy()
    table[homes, np.arange(len(homes))] = True
    return table


def relay(
    step: int,
    tensors: tuple[str, ...],
    blocks: Ints,
    src: Ints,
    dst: Ints,
    use: Flags,
    homes: Ints,
) -> Iterator[Move]:
    """Copies go to the ranks that use them; a home steps in where the rank before has none."""
    wanted = np.where(use[dst[:, None], blocks], blocks, -1)
    here = use[src[:, None], blocks]
    yield Move(step, tensors, np.where(here, wanted, -1), src, dst)
    row, column = np.nonzero(~here & (wanted >= 0))
    block = wanted[row, column]
    yield Move(step, tensors, block[:, None], homes[block], dst[row])


class Sums:
    """Running sums that follow their blocks around a ring, in one lane per rank of a group.

    A sum goes on to the next rank that adds to it, and home after the last one.
    """

    def __init__(self, use: Flags, lanes: int, homes: Ints) -> None:
        self.use, self.lanes, self.homes = use, lanes, homes
        self.holder = np.full((lanes, use.shape[1]), -1)
        # How many ranks of a lane have yet to add to each block.
        self.left = use.reshape(-1, lanes, use.shape[1]).sum(axis=0)

    def add(self, attend: Attend, side: str) -> None:
        """Note who adds to what."""
        blocks = getattr(attend, side)
        row, column = np.nonzero(blocks >= 0)
        where = attend.rank[row] % self.lanes, blocks[row, column]
        self.left[where] -= 1
        self.holder[where] = attend.rank[row]

    def hand_over(
        self,
        step: int,
        tensor: str,
        blocks: Ints,
        src: Ints,
        dst: Ints,
    ) -> Iterator[Move]:
        """Messages in the step in which `blocks` [n, w] would go one hop on, src -> dst."""
        row, column = np.nonzero(blocks >= 0)
        block, here, there = blocks[row, column], src[row], dst[row]
        lane = here % self.lanes
        left, holder = self.left[lane, block], self.holder[lane, block]
        onward = self.use[there, block] & (left > 0) & (holder >= 0)
        homeward = self.use[here, block] & (left == 0)
        there = np.where(onward, there, self.homes[block])
        hop = (holder == here) & (there == dst[row])
        sent = (onward | homeward) & (holder != there)
        kept = np.full_like(blocks, -1)
        kept[row, column] = np.where(sent & hop, block, -1)
        yield Move(step, (tensor,), kept, src, dst)
        jump = sent & ~hop
        yield Move(step, (tensor,), block[jump][:, None], holder[jump], there[jump])
