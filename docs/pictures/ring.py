"""Draws ring.svg: the blocks that each of four ranks of a ring attends in each round."""

from rounds import grid, height, rank_labels, width
from shapes import drawing

import ringloom as rl


def picture() -> str:
    """Returns the grid of the ring."""
    plan = rl.plan("ring", rl.Workload(seq=256, heads=4, mask=rl.Full()), 4)
    shapes = [*rank_labels(plan, 18), *grid(plan, 62, 18, "ring: colours by owner")]
    return drawing(
        62 + width(plan),
        18 + height(plan),
        "Blocks that each of four ranks of a ring attends, by round",
        shapes,
    )
