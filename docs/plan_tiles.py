"""Draws the tiles of a plan's mask, with the rank and step that attends each."""

import numpy as np
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from ringloom.figures.sheet import INK, WASTE
from ringloom.planner.plans import Plans
from ringloom.report.facts.tiles import tile_facts
from ringloom.report.pictures.palette import rank_colours

MAX_NUMBERED = 24  # tiles per row; with more tiles, steps are not shown


def draw_tiles(plans: Plans) -> Figure:
    """Draws the forward tiles of the first head: a colour per rank, the step as a number."""
    plan = plans.first
    facts, colours = tile_facts(plan.name, plan), rank_colours(plan.ranks)
    height, width = facts.pixels_per_piece
    ranks = np.kron(facts.rank[0], np.ones((height, width), int))
    picture = np.ones((*ranks.shape, 4))
    picture[..., 3] = 0
    for rank, colour in enumerate(colours):
        picture[(ranks == rank) & (facts.shares > 0)] = (*to_rgb(colour), 1)
    rows, columns = facts.rank[0].shape
    figure = Figure(figsize=(4.6, 3.4), layout="constrained")
    axes = figure.subplots()
    axes.imshow(picture, interpolation="none", extent=(0, columns, rows, 0))
    for i, j in np.argwhere(facts.step[0] >= 0) if columns <= MAX_NUMBERED else ():
        tile = facts.shares[i * height : (i + 1) * height, j * width : (j + 1) * width]
        y, x = (np.argwhere(tile > 0).mean(axis=0) + 0.5) / (height, width)
        number, box = str(facts.step[0, i, j] + 1), {"fc": "white", "ec": "none", "pad": 1.0}
        axes.text(j + x, i + y, number, ha="center", va="center", fontsize=6.5, bbox=box, color=INK)
    axes.set_facecolor(WASTE)
    axes.set(xlabel="keys, piece by piece", ylabel="queries, piece by piece")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True))
    axes.set_title(f"{plan.name} {plan.pass_}, {plan.workload.mask}: steps", fontsize=8)
    marks = [Rectangle((0, 0), 1, 1, facecolor=colour) for colour in colours[:8]]
    names = [f"rank {rank}" for rank in range(len(marks))]
    figure.legend(marks, names, loc="outside center right", frameon=False)
    return figure
