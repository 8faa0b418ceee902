"""Sends keys and values from everybody to everybody, over one kind of links or over two.

flat          step 0   kv[r] -> every other rank
nodes of n    step 0   kv[r] -> the ranks of r's node, and the rank of r's place in other nodes
              step 1   what came from other nodes -> the rest of the node
"""

import numpy as np

from planner.errors import PlanError
from planner.ir import Move
from planner.partitions import Ints

Moves = tuple[Move, ...]


def to_everybody(kv: Ints, node: int = 0) -> tuple[Moves, ...]:
    """Moves per step that bring the blocks kv [ranks, w] to every rank.

    With `node` ranks per node a block crosses into each other node once, as collectives over
    several nodes do. Raises PlanError where the nodes do not divide the ranks.
    """
    ranks, rank = len(kv), np.arange(len(kv))
    if node < 0 or (node and ranks % node):
        raise PlanError(f"nodes of {node} do not divide {ranks} ranks")
    if not 1 < node < ranks:
        return (tuple(Move(("KV",), kv, rank, (rank + hop) % ranks) for hop in range(1, ranks)),)
    place, first = rank % node, rank - rank % node
    mates = [first + (place + hop) % node for hop in range(1, node)]
    away = range(node, ranks, node)
    own = [Move(("KV",), kv, rank, (rank + by) % ranks) for by in away]
    own += [Move(("KV",), kv, rank, mate) for mate in mates]
    passed = [Move(("KV",), kv[(rank - by) % ranks], rank, mate) for by in away for mate in mates]
    return tuple(own), tuple(passed)
