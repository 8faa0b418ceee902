"""Heat maps: load per rank and round, bytes from rank to rank."""

import numpy as np
from bokeh.models import (
    AdaptiveTicker,
    BasicTicker,
    ColorBar,
    ColumnDataSource,
    CustomJSHover,
    CustomJSTickFormatter,
    HoverTool,
    LinearColorMapper,
    Range1d,
)

from ringloom.report.assets import asset
from ringloom.report.facts.loads import Cells
from ringloom.report.pictures.frames import BYTES, TIP, cell_axes, frame
from ringloom.report.pictures.palette import amounts

POWERS = [1 << n for n in range(10)]  # of steps along a scale of bytes
PAIRS = """
const [scale, unit] = tick >= 1e9 ? [1e9, "G"] : tick >= 1e6 ? [1e6, "M"] : [1, ""]
return `${Number((tick / scale).toPrecision(3)).toLocaleString("en")}${unit}`
"""


class HeatPicture:
    """A table of cells in one image; rows are numbered from 0, columns from `base` on."""

    def __init__(
        self, name: str, across: str, down: str, hover: str, numbers: str, base: int = 0
    ) -> None:
        self.source = ColumnDataSource(data={}, name=f"{name}-cells")
        self.colours = LinearColorMapper(
            palette=amounts(256), low=0, high=1, nan_color="rgba(0,0,0,0)"
        )
        self.figure = frame(
            name,
            height=260,
            min_width=180,
            x_axis_label=across,
            y_axis_label=down,
            x_range=Range1d(0, 1),
            y_range=Range1d(1, 0),
        )
        cells = self.figure.image(
            image="image",
            x="x",
            y="y",
            dw="dw",
            dh="dh",
            color_mapper=self.colours,
            source=self.source,
        )
        formatter = CustomJSHover(args={"cells": self.source}, code=asset(hover))
        tip = TIP.format("@image{custom}")
        self.figure.add_tools(
            HoverTool(renderers=[cells], tooltips=tip, formatters={"@image": formatter})
        )
        scale = ColorBar(
            color_mapper=self.colours,
            width=10,
            padding=4,
            ticker=AdaptiveTicker(base=1024, mantissas=POWERS)
            if numbers is BYTES
            else BasicTicker(),
            formatter=CustomJSTickFormatter(code=numbers),
        )
        self.figure.add_layout(scale, "right")
        cell_axes(self.figure)
        self.figure.xaxis.formatter = CustomJSTickFormatter(
            code=f"return (tick + {base}).toFixed()"
        )

    def show(self, cells: Cells, high: float) -> None:
        """Draw cells on a scale from 0 to `high`; what holds nothing stays empty."""
        image = np.full((cells.rows, cells.columns), np.nan)
        image[cells.row, cells.column] = cells.value
        place = {"x": [-0.5], "y": [-0.5], "dw": [cells.columns], "dh": [cells.rows]}
        mean = float(cells.value.sum()) / max(1, image.size)
        self.source.data = {"image": [image], "mean": [mean]} | place
        self.colours.high = max(high, 1)
        self.figure.x_range.update(start=-0.5, end=cells.columns - 0.5)
        self.figure.y_range.update(start=cells.rows - 0.5, end=-0.5)


def load_picture(name: str) -> HeatPicture:
    """Pairs that each rank attends in each round.

    The scale reaches to the most that any rank attends in a round of what it stands beside.
    """
    return HeatPicture(name, "round", "rank", "load_hover.js", PAIRS, base=1)


def link_picture(name: str) -> HeatPicture:
    """Bytes from rank to rank; the scale reaches to the most of any pair, one way."""
    return HeatPicture(name, "to rank", "from rank", "link_hover.js", BYTES)


def most(*tables: Cells) -> float:
    """The largest value of all tables."""
    return float(max((int(np.max(t.value, initial=0)) for t in tables), default=0))
