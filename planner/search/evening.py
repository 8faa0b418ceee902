"""Swaps of work: ranks that finish late trade costly tokens for as many cheap ones.

rank 0, ends last    |....|........####|       ####  the last tokens of a piece, which see most keys
rank 1               |++++....|............|   ++++  the first tokens of another, which see least

Pieces are cut where needed, so that ranks keep their numbers of tokens.
"""

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ringloom.planner.masks.areas import count_pairs
from ringloom.planner.partitions import shift_ranges
from ringloom.planner.search.pieces import Owned, load
from ringloom.planner.search.prices import Floats, Prices
from ringloom.planner.workload import Workload

Numbers = NDArray[np.int64]

TILE = 128  # tokens by which pieces are cut: a tile of common kernels
ROUNDS = 2  # after each, cut pieces are priced again
EACH = 4  # most swaps per rank and round
WORTH = 1e-3  # least gain of a swap, as a share of the time of the last rank


def even_out(work: Workload, ranks: int, prices: Prices, owned: Owned) -> Owned:
    """Swaps equally many tokens between ranks until they finish together."""
    grid = np.append(np.arange(0, work.seq, TILE), work.seq)
    rows = [shift_ranges((range(a, b),), work.offset) for a, b in pairwise(grid.tolist())]
    pairs = count_pairs(work.mask.region(), rows, [(range(work.kv_seq),)])[:, 0]
    before = np.append(0.0, np.cumsum(pairs + 1.0))  # pairs before each tile of the grid
    speeds = prices.speed(ranks)
    for _ in range(ROUNDS):
        cost = load(work, prices, owned.pieces)
        seconds = cost.seconds + prices.launch * cost.calls
        state = _State(owned, seconds, grid, before, prices)
        for _ in range(EACH * ranks):
            if not state.swap(speeds):
                break
        owned = state.owned()
    return owned


class _State:
    """The pieces of all ranks and their costs: arrays [pieces]."""

    def __init__(
        self, owned: Owned, seconds: Floats, grid: Numbers, before: Floats, prices: Prices
    ) -> None:
        self.start = np.array([p.start for p in owned.pieces], np.int64)
        self.stop = np.array([p.stop for p in owned.pieces], np.int64)
        self.rank, self.cost = owned.ranks.copy(), seconds
        self.grid, self.before, self.prices = grid, before, prices
        self.slope = np.append(np.diff(before) / np.diff(grid), 0.0)

    def owned(self) -> Owned:
        """Returns the pieces and their ranks."""
        pairs = zip(self.start.tolist(), self.stop.tolist(), strict=True)
        return Owned(tuple(range(a, b) for a, b in pairs), self.rank)

    def done(self, at: Numbers) -> Floats:
        """Returns the pairs of all queries before each position, interpolated within tiles."""
        tile = at // TILE
        pairs: Floats = self.slope[tile] * (at - self.grid[tile]) + self.before[tile]
        return pairs

    def share(self, piece: Numbers, first: Numbers, last: Numbers) -> Floats:
        """Returns the cost of some tokens of pieces, in proportion to their pairs."""
        begin, end = self.done(self.start), self.done(self.stop)
        x, y, a, b = self.done(first), self.done(last), begin[piece], end[piece]
        return self.cost[piece] * (y - x) / (b - a)

    def swap(self, speeds: Floats) -> bool:
        """Makes the best swap of the rank that finishes last; returns False if none helps."""
        ends = np.bincount(self.rank, self.cost, len(speeds)) / speeds
        last = int(ends.argmax())
        own = np.flatnonzero(self.rank == last)
        others = np.flatnonzero(ends[self.rank] < ends[last])
        if not len(own) or not len(others):
            return False
        a, b = (side.ravel() for side in np.meshgrid(own, others, indexing="ij"))
        size = self.stop - self.start
        other = self.rank[b]
        even = (ends[last] - ends[other]) / (1 / speeds[last] + 1 / speeds[other])
        tokens = np.minimum(size[a], size[b])
        moved = self.moved(a, b, tokens)
        for _ in range(2):  # costs vary within a piece, so the second estimate is closer
            less = tokens * np.minimum(1, even / np.maximum(moved, 1e-30))
            fewer = np.where(moved > even, np.maximum(less // TILE, 1) * TILE, tokens)
            tokens = np.minimum(tokens, fewer).astype(np.int64)
            moved = self.moved(a, b, tokens)
        cut_costs = [(tokens < size[side]) * self.new_part(size[side]) for side in (a, b)]
        after = np.maximum(
            ends[last] - (moved - cut_costs[0] - cut_costs[1]) / speeds[last],
            ends[other] + (moved + cut_costs[0] + cut_costs[1]) / speeds[other],
        )
        best = int(after.argmin())
        if after[best] > ends[last] * (1 - WORTH):
            return False
        self.exchange(int(a[best]), int(b[best]), int(tokens[best]))
        return True

    def moved(self, a: Numbers, b: Numbers, tokens: Numbers) -> Floats:
        """Returns the work that moves if the last tokens of `a` go for the first ones of `b`."""
        ending, its = self.stop[a], self.start[b]
        return self.share(a, ending - tokens, ending) - self.share(b, its, its + tokens)

    def new_part(self, size: Numbers) -> Floats:
        """Returns the seconds of an additional call, and of keys that another rank may need."""
        return np.asarray(self.prices.launch + self.prices.near * size, np.float64)

    def exchange(self, a: int, b: int, tokens: int) -> None:
        """Swaps the last tokens of one piece for the first tokens of another."""
        ranks = int(self.rank[a]), int(self.rank[b])
        for piece, to, (first, last) in (
            (a, ranks[1], (self.stop[a] - tokens, self.stop[a])),
            (b, ranks[0], (self.start[b], self.start[b] + tokens)),
        ):
            if last - first == self.stop[piece] - self.start[piece]:
                self.rank[piece] = to
                continue
            at = np.array([piece])
            gone = self.share(at, np.array([first]), np.array([last]))
            self.cost[piece] -= gone[0]
            self.cost = np.append(self.cost, gone + self.prices.launch)
            self.rank = np.append(self.rank, to)
            if last == self.stop[piece]:
                self.stop[piece] = first
            else:
                self.start[piece] = last
            self.start, self.stop = np.append(self.start, first), np.append(self.stop, last)
