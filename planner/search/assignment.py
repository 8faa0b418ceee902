"""Assigns pieces to ranks: largest first, each to the rank that would finish first; then swaps.

The finish time of a rank includes its work and calls, at its speed, and a share of the transfer
time of keys that are new to the rank or its node. Ranks own equal numbers of tokens, so a piece
that exceeds the space of all ranks is cut.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ringloom.planner.ir import Index
from ringloom.planner.layouts import Chunks, cut, sides
from ringloom.planner.layouts.pieces import gather_ranges
from ringloom.planner.search.evening import even_out
from ringloom.planner.search.pieces import Owned, count_pairs_between, cut_pieces, price_pieces
from ringloom.planner.search.prices import Floats, Prices
from ringloom.planner.workload import Workload

# The share of the transfer time of keys that ranks wait; the other share overlaps with attention.
# In 7 cases of the corpus, shares from 1/4 to 3/4 give equal plans (within 2% on H100). With 0,
# plans on 16 ranks take up to 28% longer; with 1, plans on PCIe take up to 14% longer.
TRANSFER_SHARE = 0.5
SWAPS = 200  # at most
MOST_CHECKED = 12  # swaps, best by work and calls, whose keys are counted


class Ends:
    """The finish times of ranks: work, calls, and transfers of keys to ranks and nodes."""

    def __init__(
        self, work: Workload, ranks: int, prices: Prices, pieces: Sequence[range], keys: Chunks
    ) -> None:
        self.load = price_pieces(work, prices, pieces)
        self.size = np.array([len(p) for p in pieces], np.int64)
        self.keys_move = work.seq == work.kv_seq  # keys have the owners of their queries
        ranges = list(pieces) if self.keys_move else [p for ps, _ in keys for p in ps]
        self.sees = count_pairs_between(work, pieces, ranges) > 0
        self.tokens = np.array([len(p) for p in ranges], np.float64)
        self.home = np.array([h for ps, h in keys for _ in ps], np.intp)
        self.prices, self.ranks, self.speeds = prices, ranks, prices.speed_of_ranks(ranks)
        self.node = prices.ranks_per_node(ranks)

    def of(self, owner: Index) -> Floats:
        """Returns the finish time of each rank: [ranks]."""
        seconds = np.bincount(owner, self.load.seconds, self.ranks)
        calls = np.bincount(owner, self.load.calls, self.ranks)
        computed = self.prices.finish_times(seconds, calls, self.speeds)
        transfer = self.transfer_seconds(owner, np.arange(self.ranks))
        return np.asarray(computed + TRANSFER_SHARE * transfer)

    def transfer_seconds(self, owner: Index, ranks: Index) -> Floats:
        """Returns the transfer seconds of keys to each rank, including its share of the node."""
        home = owner if self.keys_move else self.home
        seconds = np.zeros(len(ranks))
        for n, rank in enumerate(ranks.tolist()):
            keys = self.sees[owner == rank].any(axis=0) & (home != rank)
            seconds[n] = self.prices.near * self.tokens[keys].sum()
            if self.node < self.ranks and self.prices.far:
                node = rank // self.node
                keys = self.sees[owner // self.node == node].any(axis=0)
                keys &= home // self.node != node
                seconds[n] += self.prices.far * self.tokens[keys].sum() / self.node
        return seconds


def assign_pieces(
    work: Workload, ranks: int, prices: Prices, pieces: Sequence[range], keys: Chunks
) -> Owned:
    """Assigns pieces greedily; every rank owns an equal share of the tokens."""
    ends = Ends(work, ranks, prices, pieces, keys)
    space = np.array([len(c) for c in cut(work.seq, ranks)])
    seconds, calls = np.zeros(ranks), np.zeros(ranks)
    received, nodes = np.zeros(ranks), np.arange(ranks) // ends.node
    by_node = np.zeros(ranks // ends.node)
    held = np.zeros((ranks, len(ends.tokens)), np.bool_)
    if not ends.keys_move:
        held[ends.home, np.arange(len(ends.home))] = True
    assigned = list[tuple[range, int]]()
    for n in np.argsort(-ends.load.seconds, kind="stable").tolist():
        piece, cost, cost_calls = pieces[n], ends.load.seconds[n], ends.load.calls[n]
        while len(piece):
            has_space = space >= len(piece)
            is_new = ends.sees[n] & ~held
            if ends.keys_move:
                is_new[:, n] = False
            new_tokens = is_new @ ends.tokens
            at_node = np.logical_and.reduceat(is_new, np.arange(0, ranks, ends.node), axis=0)
            new_in_node = at_node @ ends.tokens if ends.node < ranks else np.zeros(1)
            transfer = prices.near * (received + new_tokens)
            transfer = transfer + prices.far * (by_node + new_in_node)[nodes] / ends.node
            computed = prices.finish_times(seconds + cost, calls + cost_calls, ends.speeds)
            finish = np.where(has_space, computed + TRANSFER_SHARE * transfer, np.inf)
            rank = int(finish.argmin() if has_space.any() else space.argmax())
            part = piece[: min(len(piece), int(space[rank]))]
            share = len(part) / len(piece)
            assigned.append((part, rank))
            held[rank] |= ends.sees[n]
            if ends.keys_move:
                held[rank, n] = True
            received[rank] += new_tokens[rank]
            by_node[nodes[rank]] += new_in_node[nodes[rank]] if ends.node < ranks else 0.0
            seconds[rank] += cost * share
            calls[rank] += cost_calls
            space[rank] -= len(part)
            cost, piece = cost * (1 - share), piece[len(part) :]
    return Owned(tuple(p for p, _ in assigned), np.array([r for _, r in assigned], np.intp))


def swap_pieces(work: Workload, ranks: int, prices: Prices, assigned: Owned, keys: Chunks) -> Owned:
    """Swaps pieces of equal size of the rank that finishes last and others, if that is faster."""
    ends, owner = Ends(work, ranks, prices, assigned.pieces, keys), assigned.ranks.copy()
    times = ends.of(owner)
    for _ in range(SWAPS):
        last = int(times.argmax())
        for a, b in _best_swaps(ends, owner, last):
            pair = last, int(owner[b])
            owner[[a, b]] = owner[[b, a]]
            is_global = ends.node < ranks  # a swap changes the times of all ranks of a node
            after = ends.of(owner) if is_global else _times_after_swap(ends, owner, times, *pair)
            is_faster = after[[*pair]].max() < times[last] * (1 - 1e-6)
            if is_faster and after.max() <= times.max():
                times = after
                break
            owner[[a, b]] = owner[[b, a]]
        else:
            break
    return Owned(assigned.pieces, owner)


def _times_after_swap(ends: Ends, owner: Index, times: Floats, a: int, b: int) -> Floats:
    """Returns the finish times of all ranks after a swap between the ranks a and b."""
    after, transfers = times.copy(), ends.transfer_seconds(owner, np.array([a, b])).tolist()
    for rank, transfer in zip((a, b), transfers, strict=True):
        is_owned = owner == rank
        seconds, calls = ends.load.seconds[is_owned].sum(), ends.load.calls[is_owned].sum()
        computed = ends.prices.finish_times(seconds, calls, ends.speeds[rank])
        after[rank] = computed + TRANSFER_SHARE * transfer
    return after


def _best_swaps(ends: Ends, owner: Index, last: int) -> list[tuple[int, int]]:
    """Returns pairs of pieces of equal size, those that balance work and calls best first."""
    own, others = np.flatnonzero(owner == last), np.flatnonzero(owner != last)
    if not len(own) or not len(others):
        return []
    seconds = np.bincount(owner, ends.load.seconds, ends.ranks)
    calls = np.bincount(owner, ends.load.calls, ends.ranks)
    rank, finish_times = owner[others], ends.prices.finish_times
    added, added_calls = (
        cost[others] - cost[own][:, None] for cost in (ends.load.seconds, ends.load.calls)
    )
    after: NDArray[np.float64] = np.maximum(
        finish_times(seconds[last] + added, calls[last] + added_calls, ends.speeds[last]),
        finish_times(seconds[rank] - added, calls[rank] - added_calls, ends.speeds[rank]),
    )
    after[ends.size[own][:, None] != ends.size[others]] = np.inf
    best = np.argsort(after, axis=None, kind="stable")[:MOST_CHECKED]
    rows, columns = np.unravel_index(best, after.shape)
    is_finite = np.isfinite(after[rows, columns])
    return [*zip(own[rows[is_finite]].tolist(), others[columns[is_finite]].tolist(), strict=True)]


def lay_out(
    work: Workload, ranks: int, prices: Prices, layout: str, grain: int
) -> tuple[Chunks, Chunks]:
    """Returns queries and keys in a layout of pieces; keys of another length are contiguous."""
    keys = sides(work, ranks, "contiguous")[1]
    pieces = cut_pieces(work, ranks, prices, layout, grain)
    if layout == "pieces":  # several pieces of a rank may form a single call
        prices = replace(prices, attend=None)
    assigned = assign_pieces(work, ranks, prices, pieces, keys)
    if layout == "work":
        assigned = even_out(work, ranks, prices, assigned)
    assigned = swap_pieces(work, ranks, prices, assigned, keys)
    queries = gather_ranges(assigned.pieces, assigned.ranks.tolist(), ranks)
    return queries, queries if work.seq == work.kv_seq else keys
