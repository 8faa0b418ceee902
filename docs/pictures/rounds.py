"""Draws the blocks that ranks attend: a row per rank, a column per round."""

from shapes import cell, text

from ringloom.planner.ir import Plan

WIDTH, GAP, HEIGHT = 52, 4, 30


def grid(plan: Plan, x: float, y: float, title: str) -> list[str]:
    """Returns a box per attended pair of blocks, in the colour of the owner of the keys."""
    shapes = [text(x, y, title, 14)]
    attending = [step.attends for step in plan.steps if step.attends]
    for round_, attends in enumerate(attending):
        left = x + round_ * (WIDTH + GAP)
        shapes.append(text(left + WIDTH / 2, y + 22, f"round {round_}", 12, "middle"))
        rows = [row for a in attends for row in zip(a.rank, a.q[:, 0], a.kv[:, 0], strict=True)]
        tiles = {int(rank): (int(q), int(kv)) for rank, q, kv in rows}
        for rank in range(plan.ranks):
            top = y + 30 + rank * (HEIGHT + GAP)
            if rank in tiles:
                q, kv = tiles[rank]
                owner = int(plan.partition.kv.owners[kv])
                shapes.append(cell(left, top, WIDTH, HEIGHT, f"q{q} kv{kv}", owner))
            else:
                shapes.append(cell(left, top, WIDTH, HEIGHT, "waits", None))
    return shapes


def height(plan: Plan) -> int:
    """Returns the height of a plan's grid with its title."""
    return 34 + plan.ranks * (HEIGHT + GAP)


def width(plan: Plan) -> int:
    """Returns the width of a plan's grid."""
    return plan.rounds * (WIDTH + GAP)


def rank_labels(plan: Plan, y: float) -> list[str]:
    """Returns a label per row."""
    tops = (y + 30 + rank * (HEIGHT + GAP) for rank in range(plan.ranks))
    return [
        text(54, top + HEIGHT / 2 + 5, f"rank {rank}", 12, "end") for rank, top in enumerate(tops)
    ]
