"""Assigns pieces to ranks: largest first, each to the rank that would finish first; then swaps.

A rank finishes when its work and calls are done, at its speed; keys that are new to it, or to its
node, count for a share of their transfer time. Ranks own equal numbers of tokens, so a piece that
fits nowhere is cut.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ringloom.planner.ir import Index
from ringloom.planner.layouts import Chunks, cut, sides
from ringloom.planner.layouts.pieces import gather_ranges
from ringloom.planner.search.evening import even_out
from ringloom.planner.search.pieces import Owned, cut_pieces, load, seen
from ringloom.planner.search.prices import Floats, Prices
from ringloom.planner.workload import Workload

# The share of the transfer time of keys that a rank is expected to wait: most of it overlaps with
# attention. In 7 cases of the corpus, shares from 1/4 to 3/4 give equal plans (within 2% on H100);
# with 0, plans on 16 ranks take up to 28% longer, with 1, plans on PCIe up to 14%.
COMING = 0.5
SWAPS = 200  # at most
LOOKED_AT = 12  # best swaps by work for which keys are counted


class Ends:
    """The finish times of ranks: work, calls, and keys that must be sent to ranks and nodes."""

    def __init__(
        self, work: Workload, ranks: int, prices: Prices, pieces: Sequence[range], keys: Chunks
    ) -> None:
        self.load = load(work, prices, pieces)
        self.size = np.array([len(p) for p in pieces], np.int64)
        self.keys_move = work.seq == work.kv_seq  # keys have the owners of their queries
        ranges = list(pieces) if self.keys_move else [p for ps, _ in keys for p in ps]
        self.sees = seen(work, pieces, ranges) > 0
        self.tokens = np.array([len(p) for p in ranges], np.float64)
        self.home = np.array([h for ps, h in keys for _ in ps], np.intp)
        self.prices, self.ranks, self.speeds = prices, ranks, prices.speed(ranks)
        self.node = prices.nodes(ranks)

    def of(self, owner: Index) -> Floats:
        """Returns the finish time of each rank: [ranks]."""
        seconds = np.bincount(owner, self.load.seconds, self.ranks)
        calls = np.bincount(owner, self.load.calls, self.ranks)
        ends = self.prices.ends(seconds, calls, self.speeds)
        return np.asarray(ends + COMING * self.coming(owner, np.arange(self.ranks)))

    def coming(self, owner: Index, ranks: Index) -> Floats:
        """Returns the transfer seconds of keys to ranks, and to nodes over one link per rank."""
        home = owner if self.keys_move else self.home
        out = np.zeros(len(ranks))
        for n, rank in enumerate(ranks.tolist()):
            keys = self.sees[owner == rank].any(axis=0) & (home != rank)
            out[n] = self.prices.near * self.tokens[keys].sum()
            if self.node < self.ranks and self.prices.far:
                node = rank // self.node
                keys = self.sees[owner // self.node == node].any(axis=0)
                keys &= home // self.node != node
                out[n] += self.prices.far * self.tokens[keys].sum() / self.node
        return out


def assign_pieces(
    work: Workload, ranks: int, prices: Prices, pieces: Sequence[range], keys: Chunks
) -> Owned:
    """Assigns pieces greedily; every rank owns an equal share of the tokens."""
    ends = Ends(work, ranks, prices, pieces, keys)
    room = np.array([len(c) for c in cut(work.seq, ranks)])
    seconds, calls = np.zeros(ranks), np.zeros(ranks)
    come, nodes = np.zeros(ranks), np.arange(ranks) // ends.node
    far = np.zeros(ranks // ends.node)
    held = np.zeros((ranks, len(ends.tokens)), np.bool_)
    if not ends.keys_move:
        held[ends.home, np.arange(len(ends.home))] = True
    owned = list[tuple[range, int]]()
    for n in np.argsort(-ends.load.seconds, kind="stable").tolist():
        piece, cost, many = pieces[n], ends.load.seconds[n], ends.load.calls[n]
        while len(piece):
            fits = room >= len(piece)
            new = ends.sees[n] & ~held
            if ends.keys_move:
                new[:, n] = False
            near = new @ ends.tokens
            at_node = np.logical_and.reduceat(new, np.arange(0, ranks, ends.node), axis=0)
            into = at_node @ ends.tokens if ends.node < ranks else np.zeros(1)
            moved = prices.near * (come + near) + prices.far * (far + into)[nodes] / ends.node
            end = prices.ends(seconds + cost, calls + many, ends.speeds) + COMING * moved
            rank = int(np.where(fits, end, np.inf).argmin() if fits.any() else room.argmax())
            part = piece[: min(len(piece), int(room[rank]))]
            share = len(part) / len(piece)
            owned.append((part, rank))
            held[rank] |= ends.sees[n]
            if ends.keys_move:
                held[rank, n] = True
            come[rank] += near[rank]
            far[nodes[rank]] += into[nodes[rank]] if ends.node < ranks else 0.0
            seconds[rank] += cost * share
            calls[rank] += many
            room[rank] -= len(part)
            cost, piece = cost * (1 - share), piece[len(part) :]
    return Owned(tuple(p for p, _ in owned), np.array([r for _, r in owned], np.intp))


def swap_pieces(work: Workload, ranks: int, prices: Prices, owned: Owned, keys: Chunks) -> Owned:
    """Swaps pieces of equal size between the last rank to finish and others while that helps."""
    ends, owner = Ends(work, ranks, prices, owned.pieces, keys), owned.ranks.copy()
    now = ends.of(owner)
    for _ in range(SWAPS):
        last = int(now.argmax())
        for a, b in _promising(ends, owner, last):
            other = int(owner[b])
            owner[[a, b]] = owner[[b, a]]
            after = ends.of(owner) if ends.node < ranks else _changed(ends, owner, now, last, other)
            if max(after[last], after[other]) < now[last] * (1 - 1e-6) and after.max() <= now.max():
                now = after
                break
            owner[[a, b]] = owner[[b, a]]
        else:
            break
    return Owned(owned.pieces, owner)


def _changed(ends: Ends, owner: Index, now: Floats, a: int, b: int) -> Floats:
    """Returns the finish times of ranks after a swap between two of them."""
    two, after = np.array([a, b]), now.copy()
    for rank, coming in zip((a, b), ends.coming(owner, two).tolist(), strict=True):
        own_ones = owner == rank
        seconds, calls = ends.load.seconds[own_ones].sum(), ends.load.calls[own_ones].sum()
        speed = ends.speeds[rank]
        after[rank] = ends.prices.ends(seconds, calls, speed) + COMING * coming
    return after


def _promising(ends: Ends, owner: Index, last: int) -> list[tuple[int, int]]:
    """Returns the pairs of pieces of equal size whose swap balances work and calls best."""
    here, members = np.flatnonzero(owner == last), np.flatnonzero(owner != last)
    if not len(here) or not len(members):
        return []
    seconds = np.bincount(owner, ends.load.seconds, ends.ranks)
    calls = np.bincount(owner, ends.load.calls, ends.ranks)
    other, cost, many = owner[members], ends.load.seconds, ends.load.calls
    less, fewer = cost[members] - cost[here][:, None], many[members] - many[here][:, None]
    own_ones = ends.prices.ends(seconds[last] + less, calls[last] + fewer, ends.speeds[last])
    its = ends.prices.ends(seconds[other] - less, calls[other] - fewer, ends.speeds[other])
    after: NDArray[np.float64] = np.maximum(own_ones, its)
    after[ends.size[here][:, None] != ends.size[members]] = np.inf
    best = np.argsort(after, axis=None, kind="stable")[:LOOKED_AT]
    rows, columns = np.unravel_index(best, after.shape)
    kept = np.isfinite(after[rows, columns])
    return [*zip(here[rows[kept]].tolist(), members[columns[kept]].tolist(), strict=True)]


def lay_out(
    work: Workload, ranks: int, prices: Prices, layout: str, grain: int
) -> tuple[Chunks, Chunks]:
    """Returns both sides under a layout of pieces; keys are contiguous if lengths differ."""
    keys = sides(work, ranks, "contiguous")[1]
    pieces = cut_pieces(work, ranks, prices, layout, grain)
    if layout == "pieces":  # of equal size, so swaps need no cuts; rows of several are one call
        prices = replace(prices, attend=None)
    owned = assign_pieces(work, ranks, prices, pieces, keys)
    if layout == "work":
        owned = even_out(work, ranks, prices, owned)
    owned = swap_pieces(work, ranks, prices, owned, keys)
    queries = gather_ranges(owned.pieces, owned.ranks.tolist(), ranks)
    return queries, queries if work.seq == work.kv_seq else keys
