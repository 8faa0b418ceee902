"""Draws query-key pairs as a square with one cell per pair."""

from collections.abc import Callable

from shapes import COLOURS, FAINT, INK, line, rect, text

from ringloom.planner.ir import Plan

Colour = Callable[[int, int], int | None]


def square(plan: Plan, x: float, y: float, size: float, title: str, colour: Colour) -> list[str]:
    """Returns the allowed pairs of a plan's workload; pairs whose `colour` is None are faint."""
    work = plan.workload
    allowed = work.allowed(range(work.seq), range(work.kv_seq))
    shapes = [text(x, y - 10, title, 14)]
    for i, row in enumerate(allowed.tolist()):
        for j, is_allowed in enumerate(row):
            if is_allowed:
                number = colour(i, j)
                fill = FAINT if number is None else COLOURS[number % len(COLOURS)]
                shapes.append(rect(x + j * size, y + i * size, size - 1, size - 1, fill))
    side = work.seq * size
    shapes.append(
        line([(x, y), (x + side, y), (x + side, y + side), (x, y + side), (x, y)], INK, 1)
    )
    return shapes
