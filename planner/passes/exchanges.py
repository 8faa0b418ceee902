"""Complete exchanges: messages of one step by which every rank of a set sends to every other.

Gathers and all-to-alls are complete exchanges; whole, each is one collective. At least three ranks
take part, so each sends several messages; rings and messages between pairs do not count.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ringloom.planner.ir import Index, Move

LARGEST = 4096  # on more ranks, overlapping sets (axes of a mesh) are not told apart


def exchanges(ranks: int, moves: Sequence[Move]) -> Index:
    """Returns the exchange that each message of a step belongs to, or -1: [rows of all moves].

    All moves must be of the same tensors.
    """
    src, dst = (
        np.concatenate([getattr(move, end) for move in moves]).astype(np.intp)
        for end in ("src", "dst")
    )
    if np.bincount(src).max(initial=0) < 2:
        return np.full(len(src), -1, np.intp)
    return _cliques(ranks, src, dst)


def _cliques(ranks: int, src: Index, dst: Index) -> Index:
    """Returns the complete set of ranks that each pair belongs to, or -1.

    A pair belongs to the set of ranks that both exchange messages with, themselves included; the
    set is complete if all of its pairs belong to it. Sets are compared by sums of random weights: a
    collision would only keep messages that are not needed.
    """
    pair = np.unique(src * ranks + dst)
    a, b = np.divmod(pair, ranks)
    mutual = np.isin(b * ranks + a, pair, assume_unique=True)
    a, b = a[mutual], b[mutual]
    exact = 1 << (52 - ranks.bit_length())  # so that sums of weights are exact in float64
    weight = np.random.default_rng(0).integers(1, exact, ranks).astype(np.float64)
    around = weight + np.bincount(a, weight[b], ranks)
    others = np.bincount(a, minlength=ranks)
    around[others == 0] = np.inf  # numbered last
    members = 1 + others[a]
    alike = around[a] == around[b]
    if alike.all() or ranks > LARGEST:  # every set by itself
        label = np.unique(around, return_inverse=True)[1][a]
    else:
        joint, members = _common_partners(ranks, a, b, weight)
        label, alike = np.unique(joint, return_inverse=True)[1], joint > 0
    pairs = np.bincount(label, alike)
    whole = alike & (pairs[label] == members * (members - 1)) & (members > 2)
    known = np.full(len(pair), -1, np.intp)
    known[np.flatnonzero(mutual)[whole]] = label[whole]
    return known[np.searchsorted(pair, src * ranks + dst)]


def _common_partners(
    ranks: int, a: Index, b: Index, weight: NDArray[np.float64]
) -> tuple[NDArray[np.float64], Index]:
    """Returns summed weight and number of the ranks that both of a pair exchange messages with."""
    near = np.eye(ranks)
    near[a, b] = 1.0
    return ((near * weight) @ near)[a, b], (near @ near)[a, b].astype(np.intp)
