"""Draws helpers.svg: five ranks under a causal mask, with and without helpers."""

from rounds import grid, height, rank_labels, width
from shapes import drawing

import ringloom as rl


def picture() -> str:
    """Returns the grids of both schedules, side by side."""
    work = rl.Workload(seq=320, heads=4)
    ring, balanced = (rl.plan(name, work, 5) for name in ("ring", "balanced"))
    right = 62 + width(ring) + 24
    shapes = [
        *rank_labels(ring, 18),
        *grid(ring, 62, 18, "ring"),
        *grid(balanced, right, 18, "balanced"),
    ]
    title = "Five ranks: a ring takes five rounds, with helpers three"
    return drawing(right + width(balanced), 18 + height(ring), title, shapes)
