"""Draws masks.svg: a window and packed documents over the blocks of four ranks."""

from mask_cells import square
from shapes import drawing, line, text

import ringloom as rl

SIZE, TOKENS, RANKS = 9, 24, 4
MASKS = {
    "window:5": rl.Window(5),
    "causal & documents:7,4,13": rl.Causal() & rl.Documents((7, 4, 13)),
}


def picture() -> str:
    """Returns two squares with block borders; pairs are coloured by the owner of the key."""
    shapes, side, block = [], TOKENS * SIZE, TOKENS // RANKS
    for number, (name, mask) in enumerate(MASKS.items()):
        plan = rl.plan("ring", rl.Workload(seq=TOKENS, heads=4, mask=mask), RANKS)
        x, y = 10 + number * (side + 50), 34
        shapes += square(plan, x, y, SIZE, name, lambda i, j: j // block)
        for border in range(block, TOKENS, block):
            offset = border * SIZE
            shapes.append(line([(x, y + offset), (x + side, y + offset)], width=1))
            shapes.append(line([(x + offset, y), (x + offset, y + side)], width=1))
        cells = sum(len(attend) for _, attend in plan.attends())
        shapes.append(text(x, y + side + 20, f"{cells} of {RANKS**2} tiles to attend"))
    title = "A window and three documents over the blocks of four ranks"
    return drawing(2 * (side + 50) - 20, 34 + side + 30, title, shapes)
