"""Pictures of the load and memory of ranks, and of the traffic of links."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from bokeh import models
from bokeh.plotting import figure
from numpy.typing import NDArray

from ringloom.report import asset
from ringloom.report.pictures.frames import (
    byte_ticks,
    cells_image,
    frame,
    hover,
    time_frame,
    use_integer_axes,
)
from ringloom.report.pictures.palette import DASHES, INK, OKABE_ITO, amount_colours
from ringloom.simulator.facts import Usage, over_average
from ringloom.simulator.pictures import COMPUTE, GAPS, LOAD_LABEL, link_labels
from ringloom.views.units import seconds, size, times

LABELLED = 8  # ranks whose bars have room for a number each


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
        hover(self.figure, [self.bars], tip, mode="vline")
        self.figure.xgrid.visible = False
        self.figure.xaxis.ticker = models.BasicTicker(min_interval=1, num_minor_ticks=0)

    def show(self, work: NDArray[np.int64], high: float) -> figure:
        """Draws the pairs of each rank, on a scale from 0 to `high` times the average."""
        ranks, shares = np.arange(len(work)), over_average(work)
        self.source.data = {"rank": ranks, "share": shares, "pairs": work}
        labelled = ranks if len(work) <= LABELLED else ranks[:0]
        words = [times(share) for share in shares[labelled]]
        self.numbers.data = {"rank": labelled, "share": shares[labelled], "words": words}
        few = len(work) <= GAPS
        self.bars.glyph.update(width=0.8 if few else 1.0, line_color=None if few else COMPUTE)
        self.figure.x_range.update(start=-0.5, end=len(work) - 0.5)
        self.figure.y_range.end = 1.15 * max(high, 1.0)
        return self.figure


def look_of(number: int, lines: int) -> dict[str, Any]:
    """Returns the look of a line; it is wider than later lines, so that equal lines show."""
    return {
        "line_color": OKABE_ITO[number % len(OKABE_ITO)],
        "line_width": min(10.0, 2.5 + 1.5 * (lines - number - 1)),
        "line_dash": DASHES[number % len(DASHES)],
    }


class MemoryPicture:
    """A line per schedule, told apart by colour and dashes."""

    def __init__(self, axis: models.Range1d, lines: int) -> None:
        self.figure = time_frame("memory", height=260, x_range=axis, y_axis_label="memory")
        self.figure.yaxis[0].update(**byte_ticks(8))
        self.sources = [models.ColumnDataSource(data={}, name=f"memory-{n}") for n in range(lines)]
        self.lines = [
            self.figure.step(x="x", y="y", mode="after", **look_of(n, lines), source=source)
            for n, source in enumerate(self.sources)
        ]
        tip = '<div style="color:#111"><b>@name</b><br>@words</div>'
        self.figure.add_tools(
            models.HoverTool(renderers=self.lines, tooltips=tip, line_policy="prev")
        )

    def show(self, held: Sequence[tuple[str, Usage]]) -> figure:
        """Draws the lines of these schedules."""
        most = max((one.peak for _, one in held), default=0)
        self.figure.y_range.end = 1.05 * most or 1.0
        for (name, one), source in zip(held, self.sources, strict=False):
            pairs = zip(one.seconds.tolist(), one.bytes.tolist(), strict=True)
            source.data = {
                "x": one.seconds * 1e3,
                "y": one.bytes,
                "name": np.full(len(one.bytes), f"{name}, rank {one.rank}", object),
                "words": [f"from {seconds(t)}: {size(b)} ({b:,} bytes)" for t, b in pairs],
            }
        return self.figure


class TrafficPicture:
    """A table of cells in one image; axes count ranks, also if a cell covers several."""

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
        cells = cells_image(self.figure, self.source, self.colours)
        words = models.CustomJSHover(args={"cells": self.source}, code=asset("traffic_hover.js"))
        hover(self.figure, [cells], "@image{custom}", formatters={"@image": words})
        scale = models.ColorBar(color_mapper=self.colours, width=10, padding=4, **byte_ticks())
        self.figure.add_layout(scale, "right")
        use_integer_axes(self.figure)

    def show(self, table: NDArray[np.int64], cell: int, high: float) -> figure:
        """Draws bytes on a scale from 0 to `high`; a cell covers `cell` ranks, 0 is not drawn."""
        ranks = cell * len(table)
        place = {"x": [-0.5], "y": [-0.5], "dw": [ranks], "dh": [ranks], "cell": [cell]}
        self.source.data = {"image": [np.where(table > 0, table, np.nan)]} | place
        self.colours.high = max(high, 1)
        self.figure.x_range.update(start=-0.5, end=ranks - 0.5)
        self.figure.y_range.update(start=ranks - 0.5, end=-0.5)
        self.figure.xaxis.axis_label, self.figure.yaxis.axis_label = link_labels(cell)
        return self.figure
