"""Draws overlap.svg: seconds of a round and of a hop over the tokens per rank."""

from math import log2

from shapes import COLOURS, FAINT, drawing, line, text

import ringloom as rl
from ringloom.planner.ir import TENSORS

LENGTHS = [2**k for k in range(7, 16)]
LEFT, TOP, WIDE, HIGH = 70, 16, 310, 250
FASTEST, SLOWEST = 1e-6, 1.0


def place(tokens: float, seconds: float) -> tuple[float, float]:
    """Returns x and y of a point of the chart; both axes are logarithmic."""
    x = log2(tokens / LENGTHS[0]) / log2(LENGTHS[-1] / LENGTHS[0])
    y = log2(seconds / FASTEST) / log2(SLOWEST / FASTEST)
    return LEFT + WIDE * x, TOP + HIGH * (1 - y)


def attending(tokens: int) -> float:
    """Returns the predicted seconds of one full block of 32 heads."""
    work = rl.Workload(seq=tokens, heads=32, mask=rl.Full())
    return float(rl.simulate(rl.plan("ring", work, 1), "a100-nvlink").makespan)


def curves() -> dict[str, list[tuple[float, float]]]:
    """Returns the points of compute, quadratic in the tokens, and of both hops, linear in them."""
    work = rl.Workload(seq=1, heads=32)
    token = work.kv_heads * TENSORS["KV"].bytes_per_token(work)
    inside, between = rl.hardware("a100-nvlink").links
    curves = {"attend a block": [place(c, attending(c)) for c in LENGTHS]}
    for name, link in (("hop between nodes", between), ("hop inside a node", inside)):
        curves[name] = [place(c, link.alpha + c * token / link.bandwidth) for c in LENGTHS]
    return curves


def axes() -> list[str]:
    """Returns a grid line per two powers of ten, and labels."""
    shapes = []
    for power in range(-6, 1, 2):
        (x, y), (end, _) = place(LENGTHS[0], 10.0**power), place(LENGTHS[-1], 10.0**power)
        shapes += [
            line([(x, y), (end, y)], FAINT, 1),
            text(x - 8, y + 5, f"1e{power} s", 12, "end"),
        ]
    for tokens in LENGTHS[::2]:
        x, y = place(tokens, FASTEST)
        shapes.append(text(x, y + 20, str(tokens), 12, "middle"))
    return [*shapes, text(LEFT + WIDE / 2, TOP + HIGH + 40, "tokens per rank", 13, "middle")]


def picture() -> str:
    """Returns the chart: the higher curve sets the pace."""
    shapes = axes()
    for (name, points), colour in zip(curves().items(), (0, 5, 2), strict=True):
        shapes.append(line(points, COLOURS[colour], 3))
        x, y = points[-1]
        shapes.append(text(x + 8, y + 5, name, 13, fill=COLOURS[colour]))
    said = "Compute of a round and transfer of a hop on A100s: whichever is longer sets the pace"
    return drawing(LEFT + WIDE + 140, TOP + HIGH + 50, said, shapes)
