"""Draws who_waits.svg: the work of every rank in every round, under two layouts of one ring.

Run it after changing what it shows: python docs/pictures/who_waits.py
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import ringloom as rl
from ringloom.planner.analysis.balance import loads

RANKS, WIDTH, HEIGHT, GAP, TOP, LEFT = 8, 290, 17, 4, 34, 52
TALL = TOP + RANKS * (HEIGHT + GAP) + 30  # of a panel; one above the other fits a phone
BUSY, IDLE = "#2a6f97", "#d9d9d9"
INK = "text { fill: #57606a } @media (prefers-color-scheme: dark) { text { fill: #a9b3bd } }"
WORK = rl.Workload(seq=4096 * RANKS, heads=32, mask=rl.Causal())


def load_of(schedule: str) -> NDArray[np.float64]:
    """Returns the pairs that each rank computes in each round: [rounds, ranks]."""
    return loads(rl.plan(schedule, WORK, RANKS)).astype(float)


def panel(load: NDArray[np.float64], scale: float, title: str, top: int) -> list[str]:
    """Returns a bar per rank and round, as wide as the work of the round's busiest rank."""
    drawn = list[str]()
    longest = load.max(axis=1)
    starts = (np.cumsum(longest) - longest) * scale
    for rank in range(RANKS):
        y = top + TOP + rank * (HEIGHT + GAP)
        for start, busy, most in zip(starts, load[:, rank], longest, strict=True):
            drawn.append(bar(LEFT + start, y, most * scale - 2, IDLE))
            if busy:
                drawn.append(bar(LEFT + start, y, max(1.0, busy * scale - 2), BUSY))
    idle = 1 - load.sum() / (RANKS * longest.sum())
    said = f"ranks are idle {idle:.0%} of the time"
    below = top + TOP + RANKS * (HEIGHT + GAP) + 16
    names = [text(8, top + TOP + r * (HEIGHT + GAP) + 13, f"rank {r}", 12) for r in range(RANKS)]
    words = [text(8, top + 18, title, 13, "bold"), *names, text(LEFT, below, said, 13)]
    return [*drawn, *words]


def bar(x: float, y: float, width: float, fill: str) -> str:
    return f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{HEIGHT}" fill="{fill}"/>'


def text(x: float, y: float, words: str, size: int, weight: str = "normal") -> str:
    return (
        f'<text x="{x}" y="{y}" font-family="sans-serif" font-size="{size}"'
        f' font-weight="{weight}">{words}</text>'
    )


def picture() -> str:
    """Returns the drawing as SVG text, both panels on one time scale."""
    ring, zigzag = load_of("ring"), load_of("zigzag")
    scale = WIDTH / ring.max(axis=1).sum()
    above = panel(ring, scale, "ring: consecutive pieces", 0)
    below = panel(zigzag, scale, "zigzag: one from the front, one from the back", TALL)
    wide, tall = LEFT + WIDTH + 8, 2 * TALL
    size = f'viewBox="0 0 {wide} {tall}" width="{wide}" height="{tall}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">'
    said = "<title>Causal attention on 8 ranks: work (dark) and waiting (light) over time</title>"
    return "\n".join([head, said, f"<style>{INK}</style>", *above, *below, "</svg>", ""])


if __name__ == "__main__":
    Path(__file__).with_suffix(".svg").write_text(picture())
