"""Draws the token pairs that each rank computes per round, and the masked pairs in their tiles.

Like figures 2 and 3 of Striped Attention: 16 tokens on 4 ranks, rows and columns in layout order.
"""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

import ringloom as rl
from ringloom.figures.sheet import INK, LINE, WASTE
from ringloom.report.facts.tiles import TileFacts, tile_facts
from ringloom.report.pictures.palette import rank_colours

TOKENS, RANKS = 16, 4
SCHEDULES = ("ring", "striped")


def causal_plan(schedule: str) -> rl.Plan:
    """Returns a plan for 16 tokens and a causal mask on 4 ranks."""
    return rl.plan(schedule, rl.Workload(seq=TOKENS, heads=1, head_dim=8), RANKS)


def facts(schedule: str) -> TileFacts:
    """Returns the tiles of a schedule, with a pixel per pair of tokens."""
    return tile_facts(schedule, causal_plan(schedule))


def tokens(schedule: str) -> list[str]:
    """Returns the tokens of a schedule in layout order."""
    return [str(t) for block in causal_plan(schedule).partition.q.blocks for t in block.tokens()]


def rounds() -> Figure:
    """Returns a figure with a row of panels per schedule and a panel per round."""
    figure = Figure(figsize=(7.0, 4.3))
    panels = figure.subplots(len(SCHEDULES), RANKS, squeeze=False)
    for row, schedule in zip(panels, SCHEDULES, strict=True):
        tiles = facts(schedule)
        for number, axes in enumerate(row):
            _draw_panel(axes, tiles, number)
            in_round = tiles.step[0] == number
            pairs = [int(tiles.pairs[in_round & (tiles.rank[0] == r)].sum()) for r in range(RANKS)]
            axes.set_title(f"round {number + 1}: {max(pairs)} pairs")  # of the busiest rank
        row[0].set_ylabel(f"{schedule}\nqueries")
        for axes in row:
            axes.set_xlabel("keys", labelpad=2)
    colours = rank_colours(RANKS)
    marks = [Rectangle((0, 0), 1, 1, facecolor=c) for c in colours]
    marks.append(Rectangle((0, 0), 1, 1, facecolor=WASTE, edgecolor=LINE, hatch="////"))
    names = [*(f"rank {r}" for r in range(RANKS)), "masked, in a tile"]
    figure.legend(marks, names, loc="lower center", ncols=len(names), frameon=False)
    figure.subplots_adjust(bottom=0.16, hspace=0.42, wspace=0.12, top=0.95, left=0.08, right=0.99)
    return figure


def _draw_panel(axes: Axes, tiles: TileFacts, number: int) -> None:
    """Draws computed pairs in the colour of the rank, and masked pairs of their tiles hatched."""
    height, width = tiles.pixels_per_piece
    in_round = np.kron(tiles.step[0] == number, np.ones((height, width), bool))
    ranks = np.kron(tiles.rank[0], np.ones((height, width), int))
    picture = np.ones((*in_round.shape, 3))
    for rank, colour in enumerate(rank_colours(RANKS)):
        picture[in_round & (ranks == rank) & (tiles.shares > 0)] = to_rgb(colour)
    picture[in_round & (tiles.shares == 0)] = to_rgb(WASTE)
    axes.imshow(picture, interpolation="none", extent=(0, TOKENS, TOKENS, 0))
    for i, j in np.argwhere(tiles.step[0] == number):
        top, left = i * height, j * width
        masked = tiles.shares[top : top + height, left : left + width] == 0
        for y, x in np.argwhere(masked):
            corner = left + x, top + y
            axes.add_patch(Rectangle(corner, 1, 1, fill=False, hatch="////", ec=LINE, lw=0))
        axes.add_patch(Rectangle((left, top), width, height, fill=False, ec=INK, lw=0.9))
    for edge in range(0, TOKENS + 1, TOKENS // RANKS):
        axes.axhline(edge, color=LINE, lw=0.5, zorder=0)
        axes.axvline(edge, color=LINE, lw=0.5, zorder=0)
    names = tokens(tiles.title)
    axes.set_xticks(np.arange(TOKENS) + 0.5, names, fontsize=3.6)
    axes.set_yticks(np.arange(TOKENS) + 0.5, names, fontsize=3.6)
    axes.tick_params(length=0, pad=1)
    axes.grid(False)
