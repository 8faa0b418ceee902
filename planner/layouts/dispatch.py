"""Work-sorted dispatch: assigns pieces of a sequence to ranks, so that all compute equally much.

loads        20 19 16 15 15 14 14 12        sorted, on the ranks A, B and C
snake         A  B  C  C  B  A  A  B ..     back and forth
heap          A  B  C  C  B  A ..           each to the least loaded rank with room
"""

import numpy as np
from numpy.typing import NDArray

Loads = NDArray[np.float64]  # [pieces, masks]
Owners = NDArray[np.int64]
SWAPS = 1000  # the most swaps that `balanced` makes


def snake_order(loads: Loads, ranks: int) -> Owners:
    """Returns owners of pieces [n, 1], sorted by load, in snake order (PTRR of PyTorch)."""
    turn, place = np.divmod(np.arange(len(loads)), ranks)
    owners = np.empty(len(loads), np.int64)
    order = np.argsort(-loads[:, 0], kind="stable")
    owners[order] = np.where(turn % 2 == 0, place, ranks - 1 - place)
    return owners


def to_least_loaded(loads: Loads, ranks: int, most: int) -> Owners:
    """Returns owners of pieces [n, masks], largest load first, at most `most` pieces per rank.

    Each piece goes to the rank whose largest load over the masks is smallest with it.
    """
    owners, sums = np.empty(len(loads), np.int64), np.zeros((ranks, loads.shape[1]))
    room = np.full(ranks, most)
    for piece in np.argsort(-loads.max(axis=1), kind="stable").tolist():
        after = np.where(room > 0, (sums + loads[piece]).max(axis=1), np.inf)
        rank = int(after.argmin())
        owners[piece], room[rank] = rank, room[rank] - 1
        sums[rank] += loads[piece]
    return owners


def balance_loads(loads: Loads, ranks: int, most: int) -> Owners:
    """Returns owners of pieces [n, masks] that make the largest load over ranks and masks small.

    Starts from the best of: each mask balanced alone, all masks at once; then swaps pieces of the
    busiest rank while that helps. So the result is no worse than balancing any single mask.
    """
    alone = [to_least_loaded(loads[:, [mask]], ranks, most) for mask in range(loads.shape[1])]
    starts = [*alone, to_least_loaded(loads, ranks, most)]
    owners = min(starts, key=lambda owners: sum_loads(loads, owners, ranks).max()).copy()
    for _ in range(SWAPS):
        sums = sum_loads(loads, owners, ranks)
        busiest = int(sums.max(axis=1).argmax())
        here, others = np.flatnonzero(owners == busiest), np.flatnonzero(owners != busiest)
        change = loads[others][None] - loads[here][:, None]
        after = np.maximum(sums[busiest] + change, sums[owners[others]][None] - change).max(axis=2)
        a, b = np.unravel_index(int(after.argmin()), after.shape) if after.size else (0, 0)
        if not after.size or after[a, b] >= sums[busiest].max():
            break
        owners[[here[a], others[b]]] = owners[[others[b], here[a]]]
    return owners


def sum_loads(loads: Loads, owners: Owners, ranks: int) -> Loads:
    """Returns the load of each rank: [ranks, masks]."""
    sums = np.zeros((ranks, loads.shape[1]))
    np.add.at(sums, owners, loads)
    return sums
