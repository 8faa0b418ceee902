"""Draws layouts.svg: the pairs that four ranks attend in round 1 under three layouts."""

from mask_cells import Colour, square
from shapes import drawing, text

import ringloom as rl
from ringloom.planner.ir import Plan

ROUND, SIZE = 1, 8


def rank_of_pair(plan: Plan) -> Colour:
    """Returns a function that maps a pair to the rank that attends it in round ROUND."""
    attends = [step.attends for step in plan.steps if step.attends][ROUND]
    q, kv = plan.partition.q.blocks, plan.partition.kv.blocks
    ranks = {
        (int(i), int(j)): int(rank)
        for attend in attends
        for rank, queries, keys in zip(attend.rank, attend.q, attend.kv, strict=True)
        for a in queries[queries >= 0]
        for b in keys[keys >= 0]
        for i in q[a].tokens()
        for j in kv[b].tokens()
    }
    return lambda i, j: ranks.get((i, j))


def picture() -> str:
    """Returns a square per layout; pairs of other rounds are faint."""
    work, shapes = rl.Workload(seq=16, heads=4), []
    for number, name in enumerate(("ring", "striped", "zigzag")):
        plan = rl.plan(name, work, 4)
        colour = rank_of_pair(plan)
        x = 10 + number * (16 * SIZE + 36)
        shapes += square(plan, x, 34, SIZE, name, colour)
        allowed = work.allowed(range(16), range(16))
        pairs = [colour(i, j) for i in range(16) for j in range(16) if allowed[i, j]]
        counts = ", ".join(str(pairs.count(rank)) for rank in range(4))
        shapes.append(text(x, 34 + 16 * SIZE + 20, f"pairs: {counts}", 13))
    title = "Causal pairs of 16 tokens that each of four ranks attends in round 1, by layout"
    return drawing(10 + 3 * (16 * SIZE + 36), 34 + 16 * SIZE + 30, title, shapes)
