"""Draws who_waits.svg: the work of every rank in every round, under two layouts of one ring.

The bars appear as time passes, on one clock for both; where nothing moves, all of them stand there.

Run it after a change of what it shows: python docs/pictures/who_waits.py
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import ringloom as rl
from planner.analysis.balance import loads

RANKS, WIDTH, HEIGHT, GAP, TOP = 8, 340, 17, 4, 34
CLOCK = 10  # seconds
BUSY, IDLE, INK = "#2a6f97", "#d9d9d9", "#6b6b6b"
WORK = rl.Workload(seq=4096 * RANKS, heads=32, mask=rl.Causal())


def load_of(schedule: str) -> NDArray[np.float64]:
    """Pairs that each rank attends in each round: [rounds, ranks]."""
    return loads(rl.plan(schedule, WORK, RANKS)).astype(float)


def panel(load: NDArray[np.float64], scale: float, title: str, left: int) -> list[str]:
    """A bar per rank and round, as wide as the busiest rank takes in that round."""
    drawn = [text(left, 18, title, 15, "bold")]
    longest = load.max(axis=1)
    starts = (np.cumsum(longest) - longest) * scale
    for rank in range(RANKS):
        y = TOP + rank * (HEIGHT + GAP)
        for start, busy, most in zip(starts, load[:, rank], longest, strict=True):
            drawn.append(bar(left + start, y, most * scale - 2, IDLE))
            if busy:
                drawn.append(bar(left + start, y, max(1.0, busy * scale - 2), BUSY))
    idle = 1 - load.sum() / (RANKS * longest.sum())
    said = f"ranks are idle {idle:.0%} of the time"
    drawn = [*curtain(left), f'<g clip-path="url(#to-{left})">', *drawn[1:], "</g>", drawn[0]]
    return [*drawn, text(left, TOP + RANKS * (HEIGHT + GAP) + 16, said, 13)]


def curtain(left: int) -> list[str]:
    """Shows a panel up to the time that has passed: three quarters of the clock, then a rest."""
    tall = TOP + RANKS * (HEIGHT + GAP)
    times = f'values="0;{WIDTH};{WIDTH}" keyTimes="0;0.75;1" dur="{CLOCK}s"'
    return [
        f'<clipPath id="to-{left}"><rect x="{left}" y="0" width="{WIDTH}" height="{tall}">',
        f'<animate attributeName="width" {times} repeatCount="indefinite"/></rect></clipPath>',
    ]


def bar(x: float, y: float, width: float, fill: str) -> str:
    return f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{HEIGHT}" fill="{fill}"/>'


def text(x: float, y: float, words: str, size: int, weight: str = "normal") -> str:
    return (
        f'<text x="{x}" y="{y}" font-family="sans-serif" font-size="{size}"'
        f' font-weight="{weight}" fill="{INK}">{words}</text>'
    )


def picture() -> str:
    """The whole drawing as SVG text: both panels on one scale of time."""
    ring, zigzag = load_of("ring"), load_of("zigzag")
    scale = WIDTH / ring.max(axis=1).sum()
    ranks = [text(8, TOP + r * (HEIGHT + GAP) + 13, f"rank {r}", 12) for r in range(RANKS)]
    left = panel(ring, scale, "ring: consecutive pieces", 60)
    right = panel(zigzag, scale, "zigzag: one from the front, one from the back", 60 + WIDTH + 30)
    head = '<svg xmlns="http://www.w3.org/2000/svg" width="800" height="226" role="img">'
    said = "<title>Causal attention on 8 ranks: work (dark) and waiting (light) over time</title>"
    return "\n".join([head, said, *ranks, *left, *right, "</svg>", ""])


if __name__ == "__main__":
    Path(__file__).with_suffix(".svg").write_text(picture())
