"""Complete exchanges: messages of one step by which every rank of a set reaches every other.

A gather and an all-to-all are such; whole, each is one collective. A ring and messages between
pairs are not: at least three ranks take part, so each sends several messages.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ringloom.planner.ir import Index, Move

LARGEST = 4096  # ranks up to which sets that overlap, the axes of a mesh, are told apart


def exchanges(ranks: int, moves: Sequence[Move]) -> Index:
    """The exchange that each message of a step belongs to, -1 for none: [rows of all moves].

    The moves are of the same tensors.
    """
    src, dst = (
        np.concatenate([getattr(move, end) for move in moves]).astype(np.intp)
        for end in ("src", "dst")
    )
    if np.bincount(src).max(initial=0) < 2:
        return np.full(len(src), -1, np.intp)
    return _cliques(ranks, src, dst)


def _cliques(ranks: int, src: Index, dst: Index) -> Index:
    """The complete set of ranks that each pair belongs to, -1 where it belongs to none.

    A pair belongs to the ranks that both of them exchange messages with, themselves included;
    that set is complete if all of its pairs belong to it. Sets are compared by a sum of random
    weights: were two ever taken for one, messages would stay that need not.
    """
    pair = np.unique(src * ranks + dst)
    a, b = np.divmod(pair, ranks)
    mutual = np.isin(b * ranks + a, pair, assume_unique=True)
    a, b = a[mutual], b[mutual]
    exact = 1 << (52 - ranks.bit_length())  # sums of weights are then whole numbers in float64
    weight = np.random.default_rng(0).integers(1, exact, ranks).astype(np.float64)
    around = weight + np.bincount(a, weight[b], ranks)
    others = np.bincount(a, minlength=ranks)
    around[others == 0] = np.inf  # numbered last
    members = 1 + others[a]
    alike = around[a] == around[b]
    if alike.all() or ranks > LARGEST:  # every set by itself
        label = np.unique(around, return_inverse=True)[1][a]
    else:
        joint, members = _common(ranks, a, b, weight)
        label, alike = np.unique(joint, return_inverse=True)[1], joint > 0
    pairs = np.bincount(label, alike)
    whole = alike & (pairs[label] == members * (members - 1)) & (members > 2)
    known = np.full(len(pair), -1, np.intp)
    known[np.flatnonzero(mutual)[whole]] = label[whole]
    return known[np.searchsorted(pair, src * ranks + dst)]


def _common(
    ranks: int, a: Index, b: Index, weight: NDArray[np.float64]
) -> tuple[NDArray[np.float64], Index]:
    """The ranks that both of each pair exchange messages with: their summed weight, how many."""
    near = np.eye(ranks)
    near[a, b] = 1.0
    return ((near * weight) @ near)[a, b], (near @ near)[a, b].astype(np.intp)
