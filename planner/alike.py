"""alike(a, b)   whether passes and the verifier could tell two plans apart.

They look at who attends what, what travels, homes, head slices and which tiles are live; never at
how long a block is. So a plan for another length is often derived and proved already.
"""

import numpy as np

from planner.ir import Plan
from planner.partitions import Side
from planner.tiles import Tiles, tiles


def alike(a: Plan, b: Plan) -> bool:
    """True if whatever holds for the steps of one plan holds for those of the other."""
    return (
        (a.pass_, a.ranks, a.buffers) == (b.pass_, b.ranks, b.buffers)
        and _same_blocks(a.partition.q, b.partition.q)
        and _same_blocks(a.partition.kv, b.partition.kv)
        and _same_tiles(tiles(a), tiles(b))
        and a.start == b.start
        and a.steps == b.steps
    )


def _same_blocks(a: Side, b: Side) -> bool:
    return all(
        np.array_equal(x, y)
        for x, y in ((a.homes, b.homes), (a.chunk, b.chunk), (a.slice, b.slice))
    )


def _same_tiles(a: Tiles, b: Tiles) -> bool:
    return np.array_equal(a.live_chunks, b.live_chunks) and np.array_equal(
        a.shared_heads > 0, b.shared_heads > 0
    )
