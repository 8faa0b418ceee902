"""Tables from a mask: the calls of each tile, in numpy alone, for programs and for planning."""

from collections.abc import Sequence

import numpy as np


def calls_of(
    tiles: np.ndarray,
    spans: np.ndarray,
    kv_spans: np.ndarray,
    boxes: Sequence[tuple[int, ...]],
    most: int,
) -> np.ndarray:
    """Tiles [steps, ranks, n, numbers] cut by boxes: [steps, ranks, most, numbers + 6].

    spans: the first and the last position of each block, aligned. Raises ValueError where a rank
    has more than `most` calls in a step.
    """
    nothing = 2**30
    calls = np.full((*tiles.shape[:2], most, tiles.shape[3] + 6), nothing, np.int32)
    bounds = np.array(boxes, np.int64).reshape(-1, 6)
    i0, i1, j0, j1, low, high = bounds.T
    for step, rank in np.ndindex(*tiles.shape[:2]):
        rows = []
        for tile in tiles[step, rank]:
            if tile[0] < nothing:
                (a, b), (c, d) = spans[tile[0]], kv_spans[tile[1]]
                near = (i0 <= b) & (a < i1) & (j0 <= d) & (c < j1)
                near &= (low <= d - a) & (c - b <= high)
                rows += [np.append(tile, box) for box in bounds[near]]
        if len(rows) > most:
            raise ValueError(f"{len(rows)} calls in step {step}, but there is room for {most}")
        calls[step, rank, : len(rows)] = np.array(rows, np.int64).reshape(-1, calls.shape[3])
    return calls
