"""Draws the pairs of an audit: expected, computed, and the difference."""

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Circle, Rectangle

from ringloom.auditing.html import panels
from ringloom.auditing.pictures import LEGEND
from ringloom.auditing.verdict import Audit
from ringloom.figures.sheet import INK


def draw_pairs(audit: Audit) -> Figure:
    """Draws the first matrix of an audit; strips are coloured by rank, a ring marks a fault."""
    panel = next(panels(audit, ""))
    figure = Figure(figsize=(7.0, 3.0), layout="constrained")
    for axes, (words, image, mark) in zip(figure.subplots(1, 3), panel.pictures, strict=True):
        picture = np.asarray(image.convert("RGB"))
        rows, columns = picture.shape[:2]
        axes.imshow(picture, interpolation="none", extent=(0, columns, rows, 0))
        if mark:
            at = mark[0] / 100 * columns, mark[1] / 100 * rows
            axes.add_patch(Circle(at, rows / 28, fill=False, ec="#1b1f24", lw=1.4))
        axes.set(xticks=[], yticks=[], xlabel="keys")
        axes.set_title(words.replace(", ", "\n"), fontsize=8)
    figure.axes[0].set_ylabel("queries")
    marks = [Rectangle((0, 0), 1, 1, facecolor=colour, ec=INK) for colour, _ in LEGEND]
    names = [words for _, words in LEGEND]
    figure.legend(marks, names, loc="outside lower center", ncols=5, frameon=False, fontsize=7.5)
    return figure
