"""Boxes for the blocks that ranks attend: a row per rank, a column per round."""

from shapes import cell, text

from ringloom.planner.ir import Plan

SIZE, GAP, HIGH = 52, 4, 30


def grid(plan: Plan, x: float, y: float, title: str) -> list[str]:
    """Returns a plan; a box names query and key block, its colour is the owner of the keys."""
    shapes = [text(x, y, title, 14)]
    attending = [step.attends for step in plan.steps if step.attends]
    for round_, attends in enumerate(attending):
        left = x + round_ * (SIZE + GAP)
        shapes.append(text(left + SIZE / 2, y + 22, f"round {round_}", 12, "middle"))
        rows = [row for a in attends for row in zip(a.rank, a.q[:, 0], a.kv[:, 0], strict=True)]
        tiles = {int(rank): (int(q), int(kv)) for rank, q, kv in rows}
        for rank in range(plan.ranks):
            top = y + 30 + rank * (HIGH + GAP)
            if rank in tiles:
                q, kv = tiles[rank]
                owner = int(plan.partition.kv.owners[kv])
                shapes.append(cell(left, top, SIZE, HIGH, f"q{q} kv{kv}", owner))
            else:
                shapes.append(cell(left, top, SIZE, HIGH, "waits", None))
    return shapes


def height(plan: Plan) -> int:
    """Returns the height of a plan's grid with its title."""
    return 34 + plan.ranks * (HIGH + GAP)


def width(plan: Plan) -> int:
    """Returns the width of a plan's grid."""
    return plan.rounds * (SIZE + GAP)


def ranks(plan: Plan, y: float) -> list[str]:
    """Returns the names of the rows."""
    tops = (y + 30 + rank * (HIGH + GAP) for rank in range(plan.ranks))
    return [
        text(54, top + HIGH / 2 + 5, f"rank {rank}", 12, "end") for rank, top in enumerate(tops)
    ]
