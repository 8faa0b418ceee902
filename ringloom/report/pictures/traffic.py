"""The traffic picture: bytes from rank to rank, or from node to node of many ranks."""

import numpy as np
from bokeh.models import (
    ColorBar,
    ColumnDataSource,
    CustomJSHover,
    HoverTool,
    LinearColorMapper,
    Range1d,
)
from bokeh.plotting import figure
from numpy.typing import NDArray

from ringloom.report.assets import asset
from ringloom.report.pictures.frames import TIP, cell_axes, cells_image, frame, in_bytes
from ringloom.report.pictures.palette import amounts
from simulator.pictures import link_labels


class TrafficPicture:
    """A table of cells in one image; along both axes stand ranks, whatever a cell stands for."""

    def __init__(self, name: str) -> None:
        self.source = ColumnDataSource(data={}, name=f"{name}-cells")
        self.colours = LinearColorMapper(
            palette=amounts(256),
            tags=amounts(256),
            name="amounts",
            low=0,
            high=1,
            nan_color="rgba(0,0,0,0)",
        )
        self.figure = frame(
            name, height=260, min_width=180, x_range=Range1d(0, 1), y_range=Range1d(1, 0)
        )
        cells = cells_image(self.figure, self.source, self.colours)
        formatter = CustomJSHover(args={"cells": self.source}, code=asset("traffic_hover.js"))
        tip = TIP.format("@image{custom}")
        self.figure.add_tools(
            HoverTool(renderers=[cells], tooltips=tip, formatters={"@image": formatter})
        )
        scale = ColorBar(color_mapper=self.colours, width=10, padding=4, **in_bytes())
        self.figure.add_layout(scale, "right")
        cell_axes(self.figure)

    def show(self, table: NDArray[np.int64], cell: int, high: float) -> figure:
        """Draw bytes on a scale from 0 to `high`; empty cells, of so many ranks, have none."""
        ranks = cell * len(table)
        place = {"x": [-0.5], "y": [-0.5], "dw": [ranks], "dh": [ranks], "cell": [cell]}
        self.source.data = {"image": [np.where(table > 0, table, np.nan)]} | place
        self.colours.high = max(high, 1)
        self.figure.x_range.update(start=-0.5, end=ranks - 0.5)
        self.figure.y_range.update(start=ranks - 0.5, end=-0.5)
        self.figure.xaxis.axis_label, self.figure.yaxis.axis_label = link_labels(cell)
        return self.figure
