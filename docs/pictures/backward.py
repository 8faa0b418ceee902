"""Draws backward.svg: bytes per hop of the backward pass for the key side and the query side."""

from shapes import cell, drawing, text

import ringloom as rl
from ringloom.planner.ir import TENSORS

SIDES = {"kv": ("KV", "DKV"), "q": ("Q", "DOUT", "STATS", "DQ")}
GROUPS, WIDTH = (1, 2, 4, 8), 270
COLOUR_OF = {"KV": 0, "DKV": 5, "Q": 0, "DOUT": 4, "STATS": 2, "DQ": 3}


def bytes_by_tensor(side: str, group: int) -> dict[str, int]:
    """Returns the bytes per token for 32 query heads, by tensor."""
    work = rl.Workload(seq=8, heads=32, kv_heads=32 // group)
    heads = work.heads if side == "q" else work.kv_heads
    return {name: heads * TENSORS[name].bytes_per_token(work) for name in SIDES[side]}


def bar(side: str, group: int, y: float, scale: float) -> list[str]:
    """Returns a bar with a piece per tensor and the total; narrow pieces have no name."""
    x, shapes = 180.0, [text(172, y + 18, f"{side} side", 12, "end")]
    for name, size in bytes_by_tensor(side, group).items():
        width = size * scale
        shapes.append(cell(x, y, width - 1, 24, name if width > 40 else "", COLOUR_OF[name]))
        x += width
    total = sum(bytes_by_tensor(side, group).values())
    return [*shapes, text(x + 8, y + 18, f"{total / 1024:.1f} KiB")]


def picture() -> str:
    """Returns a bar per side and group size."""
    longest = max(sum(bytes_by_tensor(side, group).values()) for side in SIDES for group in GROUPS)
    shapes, y = [], 12
    for group in GROUPS:
        shapes.append(text(10, y + 30, f"{group} per KV head" if group > 1 else "equal heads"))
        for side in SIDES:
            shapes += bar(side, group, y, WIDTH / longest)
            y += 28
        y += 12
    return drawing(530, y, "Bytes per token and hop with 32 query heads of 128 in bfloat16", shapes)
