"""Draws ring.svg: the blocks that each of four ranks of a ring attends in each round."""

from rounds import grid, height, ranks, width
from shapes import drawing

import ringloom as rl


def picture() -> str:
    """Returns one grid."""
    plan = rl.plan("ring", rl.Workload(seq=256, heads=4, mask=rl.Full()), 4)
    shapes = [*ranks(plan, 18), *grid(plan, 62, 18, "ring: colours by owner")]
    return drawing(62 + width(plan), 18 + height(plan), "A ring of four ranks, by rounds", shapes)
