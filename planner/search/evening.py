"""Swaps of work: ranks that finish late swap costly tokens for the same number of cheap tokens.

rank 0, ends last    |....|........####|       ####  the last tokens of a piece, which see most keys
rank 1               |++++....|............|   ++++  the first tokens of a piece, which see fewest

Swaps cut pieces if necessary, so that ranks keep their numbers of tokens.
"""

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ringloom.planner.masks.areas import count_pairs
from ringloom.planner.partitions import shift_ranges
from ringloom.planner.search.pieces import Owned, price_pieces
from ringloom.planner.search.prices import Floats, Prices
from ringloom.planner.workload import Workload

Numbers = NDArray[np.int64]

TILE = 128  # swaps move multiples of a tile of common kernels, in tokens
ROUNDS = 2  # after each, cut pieces are priced again
SWAPS_PER_RANK = 4  # most swaps per rank and round
LEAST_GAIN = 1e-3  # least gain of a swap, as a share of the time of the last rank


def even_out(work: Workload, ranks: int, prices: Prices, owned: Owned) -> Owned:
    """Swaps equal numbers of tokens between ranks until they finish together."""
    grid = np.append(np.arange(0, work.seq, TILE), work.seq)
    rows = [shift_ranges((range(a, b),), work.offset) for a, b in pairwise(grid.tolist())]
    pairs = count_pairs(work.mask.region(), rows, [(range(work.kv_seq),)])[:, 0]
    pairs_before = np.append(0.0, np.cumsum(pairs + 1.0))  # pairs before each tile of the grid
    speeds = prices.speed_of_ranks(ranks)
    for _ in range(ROUNDS):
        cost = price_pieces(work, prices, owned.pieces)
        seconds = cost.seconds + prices.launch * cost.calls
        state = _State(owned, seconds, grid, pairs_before, prices)
        for _ in range(SWAPS_PER_RANK * ranks):
            if not state.swap_best(speeds):
                break
        owned = state.owned()
    return owned


class _State:
    """The pieces of all ranks and their costs: arrays [pieces]."""

    def __init__(
        self, owned: Owned, seconds: Floats, grid: Numbers, pairs_before: Floats, prices: Prices
    ) -> None:
        self.start = np.array([p.start for p in owned.pieces], np.int64)
        self.stop = np.array([p.stop for p in owned.pieces], np.int64)
        self.rank, self.cost = owned.ranks.copy(), seconds
        self.grid, self.before, self.prices = grid, pairs_before, prices
        self.slope = np.append(np.diff(pairs_before) / np.diff(grid), 0.0)

    def owned(self) -> Owned:
        """Returns the pieces and their ranks."""
        pairs = zip(self.start.tolist(), self.stop.tolist(), strict=True)
        return Owned(tuple(range(a, b) for a, b in pairs), self.rank)

    def pairs_until(self, index: Numbers) -> Floats:
        """Returns the pairs of all queries before each position, interpolated within tiles."""
        tile = index // TILE
        pairs: Floats = self.slope[tile] * (index - self.grid[tile]) + self.before[tile]
        return pairs

    def cost_of(self, piece: Numbers, first: Numbers, last: Numbers) -> Floats:
        """Returns the cost of the tokens first..last - 1 of pieces, proportional to pairs."""
        begin, end = self.pairs_until(self.start), self.pairs_until(self.stop)
        x, y, a, b = self.pairs_until(first), self.pairs_until(last), begin[piece], end[piece]
        return self.cost[piece] * (y - x) / (b - a)

    def swap_best(self, speeds: Floats) -> bool:
        """Makes the best swap of the rank that finishes last; returns False without a gain."""
        ends = np.bincount(self.rank, self.cost, len(speeds)) / speeds
        last = int(ends.argmax())
        own_pieces = np.flatnonzero(self.rank == last)
        other_pieces = np.flatnonzero(ends[self.rank] < ends[last])
        if not len(own_pieces) or not len(other_pieces):
            return False
        a, b = (side.ravel() for side in np.meshgrid(own_pieces, other_pieces, indexing="ij"))
        size = self.stop - self.start
        other = self.rank[b]
        needed = (ends[last] - ends[other]) / (1 / speeds[last] + 1 / speeds[other])
        tokens = np.minimum(size[a], size[b])
        moved_work = self.moved_work(a, b, tokens)
        for _ in range(2):  # costs vary within a piece, so the second estimate is closer
            tiles = tokens * np.minimum(1, needed / np.maximum(moved_work, 1e-30)) // TILE
            limit = np.where(moved_work > needed, np.maximum(tiles, 1) * TILE, tokens)
            tokens = np.minimum(tokens, limit).astype(np.int64)
            moved_work = self.moved_work(a, b, tokens)
        extra_costs = [(tokens < size[side]) * self.extra_cost(size[side]) for side in (a, b)]
        after = np.maximum(
            ends[last] - (moved_work - extra_costs[0] - extra_costs[1]) / speeds[last],
            ends[other] + (moved_work + extra_costs[0] + extra_costs[1]) / speeds[other],
        )
        best = int(after.argmin())
        if after[best] > ends[last] * (1 - LEAST_GAIN):
            return False
        self.exchange(int(a[best]), int(b[best]), int(tokens[best]))
        return True

    def moved_work(self, a: Numbers, b: Numbers, tokens: Numbers) -> Floats:
        """Returns the work that moves if the last tokens of `a` replace the first tokens of `b`."""
        end, begin = self.stop[a], self.start[b]
        return self.cost_of(a, end - tokens, end) - self.cost_of(b, begin, begin + tokens)

    def extra_cost(self, size: Numbers) -> Floats:
        """Returns the seconds of an additional call, and of keys that another rank may need."""
        return np.asarray(self.prices.launch + self.prices.near * size, np.float64)

    def exchange(self, a: int, b: int, tokens: int) -> None:
        """Swaps the last tokens of piece `a` and the first tokens of piece `b`."""
        ranks = int(self.rank[a]), int(self.rank[b])
        for piece, new_rank, (first, last) in (
            (a, ranks[1], (self.stop[a] - tokens, self.stop[a])),
            (b, ranks[0], (self.start[b], self.start[b] + tokens)),
        ):
            if last - first == self.stop[piece] - self.start[piece]:
                self.rank[piece] = new_rank
                continue
            index = np.array([piece])
            moved_cost = self.cost_of(index, np.array([first]), np.array([last]))
            self.cost[piece] -= moved_cost[0]
            self.cost = np.append(self.cost, moved_cost + self.prices.launch)
            self.rank = np.append(self.rank, new_rank)
            if last == self.stop[piece]:
                self.stop[piece] = first
            else:
                self.start[piece] = last
            self.start, self.stop = np.append(self.start, first), np.append(self.stop, last)
