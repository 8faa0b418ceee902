"""Draws helpers.svg: five ranks under a causal mask, without helpers and with them."""

from rounds import grid, height, ranks, width
from shapes import drawing

import ringloom as rl


def picture() -> str:
    """Returns two grids side by side."""
    work = rl.Workload(seq=320, heads=4)
    ring, balanced = (rl.plan(name, work, 5) for name in ("ring", "balanced"))
    right = 62 + width(ring) + 24
    shapes = [*ranks(ring, 18), *grid(ring, 62, 18, "ring"), *grid(balanced, right, 18, "balanced")]
    said = "Five ranks: a ring takes five rounds, helpers make it three"
    return drawing(right + width(balanced), 18 + height(ring), said, shapes)
