"""The load picture: a bar per rank, its work over the average."""

import numpy as np
from bokeh.models import BasicTicker, ColumnDataSource, HoverTool, Range1d, Span
from bokeh.plotting import figure
from numpy.typing import NDArray

from ringloom.report.pictures.frames import TIP, frame
from simulator.facts import over_average
from simulator.pictures import COMPUTE, GAPS, LOAD_LABEL


class LoadPicture:
    """Bars of all ranks beside a line at the average."""

    def __init__(self, name: str) -> None:
        self.source = ColumnDataSource(data={}, name=f"{name}-bars")
        self.figure = frame(
            name,
            height=260,
            min_width=180,
            x_axis_label="rank",
            y_axis_label=LOAD_LABEL,
            x_range=Range1d(0, 1),
            y_range=Range1d(0, 1),
        )
        self.bars = self.figure.vbar(
            x="rank",
            top="share",
            width=0.8,
            fill_color=COMPUTE,
            line_color=None,
            source=self.source,
        )
        self.figure.add_layout(Span(location=1, dimension="width", line_color="#7F7F7F"))
        tip = TIP.format("rank @rank: @pairs{0,0} pairs x heads, @share{0.00}x the average")
        self.figure.add_tools(HoverTool(renderers=[self.bars], tooltips=tip, mode="vline"))
        self.figure.xgrid.visible = False
        self.figure.xaxis.ticker = BasicTicker(min_interval=1, num_minor_ticks=0)

    def show(self, work: NDArray[np.int64], high: float) -> figure:
        """Draw the pairs that each rank attends, on a scale from 0 to `high` times the average."""
        ranks, shares = np.arange(len(work)), over_average(work)
        self.source.data = {"rank": ranks, "share": shares, "pairs": work}
        few = len(work) <= GAPS
        self.bars.glyph.update(width=0.8 if few else 1.0, line_color=None if few else COMPUTE)
        self.figure.x_range.update(start=-0.5, end=len(work) - 0.5)
        self.figure.y_range.end = 1.05 * max(high, 1.0)
        return self.figure
