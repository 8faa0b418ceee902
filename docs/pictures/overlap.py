"""Draws overlap.svg: time of a round and of a hop against tokens per rank."""

from math import log2

from shapes import COLOURS, FAINT, drawing, line, text

import ringloom as rl
from ringloom.planner.ir import TENSORS

LENGTHS = [2**k for k in range(7, 16)]
LEFT, TOP, WIDTH, HEIGHT = 70, 16, 310, 250
FASTEST, SLOWEST = 1e-6, 1.0


def point(tokens: float, seconds: float) -> tuple[float, float]:
    """Returns x and y in the chart, whose axes are both logarithmic."""
    x = log2(tokens / LENGTHS[0]) / log2(LENGTHS[-1] / LENGTHS[0])
    y = log2(seconds / FASTEST) / log2(SLOWEST / FASTEST)
    return LEFT + WIDTH * x, TOP + HEIGHT * (1 - y)


def compute_time(tokens: int) -> float:
    """Returns the predicted seconds to attend one full block with 32 heads."""
    work = rl.Workload(seq=tokens, heads=32, mask=rl.Full())
    return float(rl.simulate(rl.plan("ring", work, 1), "a100-nvlink").makespan)


def curves() -> dict[str, list[tuple[float, float]]]:
    """Returns the points of three curves: compute and the hops over both kinds of link."""
    work = rl.Workload(seq=1, heads=32)
    token_bytes = work.kv_heads * TENSORS["KV"].bytes_per_token(work)
    inside, between = rl.hardware("a100-nvlink").links
    curves = {"attend a block": [point(c, compute_time(c)) for c in LENGTHS]}
    for name, link in (("hop between nodes", between), ("hop inside a node", inside)):
        curves[name] = [point(c, link.alpha + c * token_bytes / link.bandwidth) for c in LENGTHS]
    return curves


def axes() -> list[str]:
    """Returns labels and a grid line for every second power of ten."""
    shapes = []
    for power in range(-6, 1, 2):
        (x, y), (end, _) = point(LENGTHS[0], 10.0**power), point(LENGTHS[-1], 10.0**power)
        shapes += [
            line([(x, y), (end, y)], FAINT, 1),
            text(x - 8, y + 5, f"1e{power} s", 12, "end"),
        ]
    for tokens in LENGTHS[::2]:
        x, y = point(tokens, FASTEST)
        shapes.append(text(x, y + 20, str(tokens), 12, "middle"))
    return [*shapes, text(LEFT + WIDTH / 2, TOP + HEIGHT + 40, "tokens per rank", 13, "middle")]


def picture() -> str:
    """Returns the chart; the higher curve sets the duration of a round."""
    shapes = axes()
    for (name, points), colour in zip(curves().items(), (0, 5, 2), strict=True):
        shapes.append(line(points, COLOURS[colour], 3))
        x, y = points[-1]
        shapes.append(text(x + 8, y + 5, name, 13, fill=COLOURS[colour]))
    title = "Time of a round and of a hop on A100s, against tokens per rank"
    return drawing(LEFT + WIDTH + 140, TOP + HEIGHT + 50, title, shapes)
