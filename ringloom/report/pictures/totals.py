"""Pictures of the load and memory of ranks, and of the traffic between ranks."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from bokeh import models
from bokeh.plotting import figure
from numpy.typing import NDArray

from ringloom.report import asset
from ringloom.report.pictures.frames import (
    add_tooltip,
    byte_ticks,
    draw_cells,
    frame,
    time_frame,
    use_integer_axes,
)
from ringloom.report.pictures.palette import DASHES, INK, OKABE_ITO, amount_colours
from ringloom.simulator.facts import Usage, over_average
from ringloom.simulator.pictures import COMPUTE, GAPS, LOAD_LABEL, link_labels
from ringloom.views.units import seconds, size, times

MOST_NUMBERS = 8  # ranks; with more, bars have no numbers


class LoadPicture:
    """A bar per rank, and a line at the average."""

    def __init__(self, name: str) -> None:
        self.source = models.ColumnDataSource(data={}, name=f"{name}-bars")
        self.figure = frame(
            name,
            height=260,
            min_width=180,
            x_axis_label="rank",
            y_axis_label=LOAD_LABEL,
        )
        self.bars = self.figure.vbar(
            x="rank",
            top="share",
            width=0.8,
            fill_color=COMPUTE,
            line_color=None,
            source=self.source,
        )
        self.numbers = models.ColumnDataSource(data={}, name=f"{name}-numbers")
        self.figure.text(
            x="rank",
            y="share",
            text="words",
            text_align="center",
            text_font_size="11px",
            text_color=INK,
            source=self.numbers,
        ).glyph.name = "numbers"
        self.figure.add_layout(models.Span(location=1, dimension="width", line_color="#7F7F7F"))
        tip = "rank @rank: @pairs{0,0} pairs x heads, @share{0.00}x the average"
        add_tooltip(self.figure, [self.bars], tip, mode="vline")
        self.figure.xgrid.visible = False
        self.figure.xaxis.ticker = models.BasicTicker(min_interval=1, num_minor_ticks=0)

    def show(self, work: NDArray[np.int64], highest: float) -> figure:
        """Draws the pairs of each rank, on a scale from 0 to `highest` times the average."""
        ranks, shares = np.arange(len(work)), over_average(work)
        self.source.data = {"rank": ranks, "share": shares, "pairs": work}
        numbered = ranks if len(work) <= MOST_NUMBERS else ranks[:0]
        words = [times(share) for share in shares[numbered]]
        self.numbers.data = {"rank": numbered, "share": shares[numbered], "words": words}
        width, edge = (0.8, None) if len(work) <= GAPS else (1.0, COMPUTE)
        self.bars.glyph.update(width=width, line_color=edge)
        self.figure.x_range.update(start=-0.5, end=len(work) - 0.5)
        self.figure.y_range.end = 1.15 * max(highest, 1.0)
        return self.figure


def line_style(number: int, lines: int) -> dict[str, Any]:
    """Returns the style of a line; earlier lines are wider, so that equal lines are all visible."""
    return {
        "line_color": OKABE_ITO[number % len(OKABE_ITO)],
        "line_width": min(10.0, 2.5 + 1.5 * (lines - number - 1)),
        "line_dash": DASHES[number % len(DASHES)],
    }


class MemoryPicture:
    """A line per schedule, with its own colour and dashes."""

    def __init__(self, axis: models.Range1d, lines: int) -> None:
        self.figure = time_frame("memory", height=260, x_range=axis, y_axis_label="memory")
        self.figure.yaxis[0].update(**byte_ticks(8))
        self.sources = [models.ColumnDataSource(data={}, name=f"memory-{n}") for n in range(lines)]
        self.lines = [
            self.figure.step(x="x", y="y", mode="after", **line_style(n, lines), source=source)
            for n, source in enumerate(self.sources)
        ]
        tip = '<div style="color:#111"><b>@name</b><br>@words</div>'
        self.figure.add_tools(
            models.HoverTool(renderers=self.lines, tooltips=tip, line_policy="prev")
        )

    def show(self, usages: Sequence[tuple[str, Usage]]) -> figure:
        """Draws a line per schedule: (name, memory over time)."""
        highest = max((used.peak for _, used in usages), default=0)
        self.figure.y_range.end = 1.05 * highest or 1.0
        for (name, used), source in zip(usages, self.sources, strict=False):
            points = zip(used.seconds.tolist(), used.bytes.tolist(), strict=True)
            source.data = {
                "x": used.seconds * 1e3,
                "y": used.bytes,
                "name": np.full(len(used.bytes), f"{name}, rank {used.rank}", object),
                "words": [f"from {seconds(t)}: {size(b)} ({b:,} bytes)" for t, b in points],
            }
        return self.figure


class TrafficPicture:
    """A heat map of bytes between ranks, or between groups of ranks; its axes count ranks."""

    def __init__(self, name: str) -> None:
        self.source = models.ColumnDataSource(data={}, name=f"{name}-cells")
        self.colours = models.LinearColorMapper(
            palette=amount_colours(256),
            tags=amount_colours(256),
            name="amounts",
            low=0,
            high=1,
            nan_color="rgba(0,0,0,0)",
        )
        self.figure = frame(name, height=260, min_width=180)
        cells = draw_cells(self.figure, self.source, self.colours)
        words = models.CustomJSHover(args={"cells": self.source}, code=asset("traffic_hover.js"))
        add_tooltip(self.figure, [cells], "@image{custom}", formatters={"@image": words})
        scale = models.ColorBar(color_mapper=self.colours, width=10, padding=4, **byte_ticks())
        self.figure.add_layout(scale, "right")
        use_integer_axes(self.figure)

    def show(self, table: NDArray[np.int64], ranks_per_cell: int, highest: float) -> figure:
        """Draws a table of bytes on a scale from 0 to `highest`; leaves cells of 0 empty."""
        ranks = ranks_per_cell * len(table)
        extent = {"x": [-0.5], "y": [-0.5], "dw": [ranks], "dh": [ranks]}
        image = {"image": [np.where(table > 0, table, np.nan)], "cell": [ranks_per_cell]}
        self.source.data = image | extent
        self.colours.high = max(highest, 1)
        self.figure.x_range.update(start=-0.5, end=ranks - 0.5)
        self.figure.y_range.update(start=ranks - 0.5, end=-0.5)
        self.figure.xaxis.axis_label, self.figure.yaxis.axis_label = link_labels(ranks_per_cell)
        return self.figure
