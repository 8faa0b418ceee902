"""Work-sorted dispatch: assigns pieces of a sequence to ranks, so that all do the same work.

loads        20 19 16 15 15 14 14 12        sorted, on the ranks A, B and C
snake         A  B  C  C  B  A  A  B ..     back and forth
heap          A  B  C  C  B  A ..           to the least loaded rank with space left
"""

import numpy as np
from numpy.typing import NDArray

Loads = NDArray[np.float64]  # [pieces, masks]
Owners = NDArray[np.int64]
SWAPS = 1000  # limit of `balance_loads`


def assign_in_snake_order(loads: Loads, ranks: int) -> Owners:
    """Assigns pieces with loads [n, 1], largest first, in snake order (PTRR of PyTorch)."""
    lap, position = np.divmod(np.arange(len(loads)), ranks)
    owners = np.empty(len(loads), np.int64)
    order = np.argsort(-loads[:, 0], kind="stable")
    owners[order] = np.where(lap % 2 == 0, position, ranks - 1 - position)
    return owners


def assign_least_loaded(loads: Loads, ranks: int, most: int) -> Owners:
    """Assigns pieces with loads [n, masks], largest first, at most `most` pieces per rank.

    Each piece goes to the rank that then has the smallest maximum load over the masks.
    """
    owners, sums = np.empty(len(loads), np.int64), np.zeros((ranks, loads.shape[1]))
    space = np.full(ranks, most)
    for piece in np.argsort(-loads.max(axis=1), kind="stable").tolist():
        largest = np.where(space > 0, (sums + loads[piece]).max(axis=1), np.inf)
        rank = int(largest.argmin())
        owners[piece], space[rank] = rank, space[rank] - 1
        sums[rank] += loads[piece]
    return owners


def balance_loads(loads: Loads, ranks: int, most: int) -> Owners:
    """Assigns pieces with loads [n, masks] so that the largest load of ranks and masks is small.

    Balances each mask alone and all masks together, takes the best result, and swaps pieces of the
    busiest rank while the load decreases. So the result is no worse than balancing a single mask.
    """
    tables = [*(loads[:, [mask]] for mask in range(loads.shape[1])), loads]
    starts = [assign_least_loaded(table, ranks, most) for table in tables]
    owners = min(starts, key=lambda owners: sum_loads(loads, owners, ranks).max()).copy()
    for _ in range(SWAPS):
        sums = sum_loads(loads, owners, ranks)
        busiest = int(sums.max(axis=1).argmax())
        own, others = np.flatnonzero(owners == busiest), np.flatnonzero(owners != busiest)
        added = loads[others][None] - loads[own][:, None]
        largest = np.maximum(sums[busiest] + added, sums[owners[others]][None] - added).max(axis=2)
        i, j = np.unravel_index(int(largest.argmin()), largest.shape) if largest.size else (0, 0)
        if not largest.size or largest[i, j] >= sums[busiest].max():
            break
        owners[[own[i], others[j]]] = owners[[others[j], own[i]]]
    return owners


def sum_loads(loads: Loads, owners: Owners, ranks: int) -> Loads:
    """Returns the load of each rank: [ranks, masks]."""
    sums = np.zeros((ranks, loads.shape[1]))
    np.add.at(sums, owners, loads)
    return sums
