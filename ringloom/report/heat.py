"""Heat maps: load per rank and round, bytes from rank to rank."""

from typing import Any

import numpy as np
from bokeh.models import (
    BasicTicker,
    ColumnDataSource,
    CustomJSTickFormatter,
    HoverTool,
    LinearColorMapper,
    Range1d,
)
from bokeh.plotting import figure

from ringloom.drawing import size
from ringloom.report.loads import Cells
from ringloom.report.palette import amounts


class HeatPicture:
    """A table of cells; rows are numbered from 0, columns from `base` on."""

    def __init__(self, name: str, across: str, down: str, tip: str, base: int = 0) -> None:
        self.base = base
        self.source = ColumnDataSource(data={}, name=f"{name}-cells")
        self.colours = LinearColorMapper(palette=amounts(256), low=0, high=1)
        self.figure = figure(
            name=name,
            height=260,
            sizing_mode="stretch_width",
            min_width=180,
            tools="",
            toolbar_location=None,
            x_axis_label=across,
            y_axis_label=down,
            x_range=Range1d(0, 1),
            y_range=Range1d(1, 0),
        )
        cells = self.figure.rect(
            x="x",
            y="y",
            width=0.94,
            height=0.94,
            fill_color={"field": "value", "transform": self.colours},
            line_color=None,
            source=self.source,
        )
        style = f'<div style="max-width:18rem;color:#111">{tip}</div>'
        self.figure.add_tools(HoverTool(renderers=[cells], tooltips=style))
        self.figure.grid.visible = False
        for axis in (*self.figure.xaxis, *self.figure.yaxis):
            axis.ticker = BasicTicker(min_interval=1, num_minor_ticks=0)
        self.figure.xaxis.formatter = CustomJSTickFormatter(
            code=f"return (tick + {base}).toFixed()"
        )

    def show(self, cells: Cells, high: float, words: list[str]) -> None:
        """Draw cells on a scale from 0 to `high`; `words` say what each of them holds."""
        data: dict[str, Any] = {"x": cells.column, "y": cells.row, "value": cells.value}
        data |= {"column": cells.column + self.base, "row": cells.row, "words": words}
        self.source.data = data
        self.colours.high = max(high, 1)
        self.figure.x_range.start, self.figure.x_range.end = -0.5, cells.columns - 0.5
        self.figure.y_range.start, self.figure.y_range.end = cells.rows - 0.5, -0.5


def load_picture(name: str) -> HeatPicture:
    """Pairs that each rank attends in each round."""
    return HeatPicture(name, "round", "rank", "rank @row, round @column: @words", base=1)


def show_load(picture: HeatPicture, cells: Cells, high: float) -> None:
    """Draw a load; `high` is the most that any rank attends in a round of what it stands beside."""
    mean = float(cells.value.sum()) / max(1, cells.columns * cells.rows)
    words = [f"{v:,} pairs x heads, {v / mean:.2f} times the mean" for v in cells.value.tolist()]
    picture.show(cells, high, words)


def link_picture(name: str) -> HeatPicture:
    """Bytes from rank to rank."""
    return HeatPicture(name, "to rank", "from rank", "rank @row to @column: @words")


def show_links(picture: HeatPicture, cells: Cells, high: float) -> None:
    """Draw traffic; `high` is the most that any pair of ranks exchanges one way."""
    picture.show(cells, high, [f"{size(v)} ({v:,} bytes)" for v in cells.value.tolist()])


def most(*tables: Cells) -> float:
    """The largest value of all tables."""
    return float(max((int(np.max(t.value, initial=0)) for t in tables), default=0))
