"""Draws who_waits.svg: the work of every rank in every round of a ring, under two layouts."""

import numpy as np
from numpy.typing import NDArray

import ringloom as rl
from ringloom.planner.analysis.balance import loads

RANKS, WIDTH, HEIGHT, GAP, TOP, LEFT = 8, 290, 17, 4, 34, 52
PANEL = TOP + RANKS * (HEIGHT + GAP) + 30  # height; stacked panels fit a phone
STYLE = (
    "text { fill: #57606a } .busy { fill: #2a6f97 } .idle { fill: #d9d9d9 }"
    " @media (prefers-color-scheme: dark)"
    " { text { fill: #a9b3bd } .busy { fill: #3b9fd9 } .idle { fill: #46515d } }"
)
WORK = rl.Workload(seq=4096 * RANKS, heads=32, mask=rl.Causal())


def load_of(schedule: str) -> NDArray[np.float64]:
    """Returns the pairs that each rank computes in each round: [rounds, ranks]."""
    return loads(rl.plan(schedule, WORK, RANKS)).astype(float)


def panel(load: NDArray[np.float64], scale: float, title: str, top: int) -> list[str]:
    """Returns a bar per rank and round, as wide as the work of the round's busiest rank."""
    bars = list[str]()
    longest = load.max(axis=1)
    starts = (np.cumsum(longest) - longest) * scale
    for rank in range(RANKS):
        y = top + TOP + rank * (HEIGHT + GAP)
        for start, busy, total in zip(starts, load[:, rank], longest, strict=True):
            bars.append(bar(LEFT + start, y, total * scale - 2, "idle"))
            if busy:
                bars.append(bar(LEFT + start, y, max(1.0, busy * scale - 2), "busy"))
    idle = 1 - load.sum() / (RANKS * longest.sum())
    caption = f"ranks are idle {idle:.0%} of the time"
    caption_y = top + TOP + RANKS * (HEIGHT + GAP) + 16
    names = [text(8, top + TOP + r * (HEIGHT + GAP) + 13, f"rank {r}", 12) for r in range(RANKS)]
    words = [text(8, top + 18, title, 13, "bold"), *names, text(LEFT, caption_y, caption, 13)]
    return [*bars, *words]


def bar(x: float, y: float, width: float, kind: str) -> str:
    return f'<rect class="{kind}" x="{x:.1f}" y="{y}" width="{width:.1f}" height="{HEIGHT}"/>'


def text(x: float, y: float, words: str, size: int, weight: str = "normal") -> str:
    return (
        f'<text x="{x}" y="{y}" font-family="sans-serif" font-size="{size}"'
        f' font-weight="{weight}">{words}</text>'
    )


def picture() -> str:
    """Returns the drawing as SVG text, with both panels on one time scale."""
    ring, zigzag = load_of("ring"), load_of("zigzag")
    scale = WIDTH / ring.max(axis=1).sum()
    above = panel(ring, scale, "ring: consecutive pieces", 0)
    below = panel(zigzag, scale, "zigzag: one from the front, one from the back", PANEL)
    width, height = LEFT + WIDTH + 8, 2 * PANEL
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">'
    title = "<title>Causal attention on 8 ranks: work (blue) and idle time (grey)</title>"
    return "\n".join([head, title, f"<style>{STYLE}</style>", *above, *below, "</svg>", ""])
