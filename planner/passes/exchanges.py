"""Complete exchanges: in one step, every rank of a set sends a message to every other rank.

Gathers and all-to-alls are complete exchanges; a program runs each as one collective. A complete
exchange has at least three ranks, so rings and messages between pairs do not count.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ringloom.planner.ir import Index, Move

MOST_RANKS = 4096  # on more ranks, overlapping sets (axes of a mesh) are not distinguished


def exchanges(ranks: int, moves: Sequence[Move]) -> Index:
    """Returns the number of each message's complete exchange, or -1: [rows of all moves].

    All moves must be of one step and the same tensors.
    """
    src, dst = (
        np.concatenate([getattr(move, end) for move in moves]).astype(np.intp)
        for end in ("src", "dst")
    )
    if np.bincount(src).max(initial=0) < 2:
        return np.full(len(src), -1, np.intp)
    return _cliques(ranks, src, dst)


def _cliques(ranks: int, src: Index, dst: Index) -> Index:
    """Returns the number of the complete set of each pair of ranks, or -1.

    The set of a pair is the pair and all ranks that exchange messages with both ranks. A set is
    complete if it is the set of each of its pairs. Sums of random weights identify sets; a
    collision would only keep messages that are not needed.
    """
    pair = np.unique(src * ranks + dst)
    a, b = np.divmod(pair, ranks)
    is_mutual = np.isin(b * ranks + a, pair, assume_unique=True)
    a, b = a[is_mutual], b[is_mutual]
    limit = 1 << (52 - ranks.bit_length())  # keeps sums of weights exact in float64
    weight = np.random.default_rng(0).integers(1, limit, ranks).astype(np.float64)
    set_sum = weight + np.bincount(a, weight[b], ranks)
    partners = np.bincount(a, minlength=ranks)
    set_sum[partners == 0] = np.inf  # numbered last
    set_size = 1 + partners[a]
    is_same_set = set_sum[a] == set_sum[b]
    if is_same_set.all() or ranks > MOST_RANKS:  # disjoint sets
        label = np.unique(set_sum, return_inverse=True)[1][a]
    else:
        common_sum, set_size = _common_partners(ranks, a, b, weight)
        label, is_same_set = np.unique(common_sum, return_inverse=True)[1], common_sum > 0
    pair_count = np.bincount(label, is_same_set)
    is_complete = is_same_set & (pair_count[label] == set_size * (set_size - 1)) & (set_size > 2)
    exchange = np.full(len(pair), -1, np.intp)
    exchange[np.flatnonzero(is_mutual)[is_complete]] = label[is_complete]
    return exchange[np.searchsorted(pair, src * ranks + dst)]


def _common_partners(
    ranks: int, a: Index, b: Index, weight: NDArray[np.float64]
) -> tuple[NDArray[np.float64], Index]:
    """Returns the total weight and the number of ranks that exchange messages with a pair."""
    table = np.eye(ranks)
    table[a, b] = 1.0
    return ((table * weight) @ table)[a, b], (table @ table)[a, b].astype(np.intp)
