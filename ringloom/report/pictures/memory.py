"""Memory over time of the worst rank, a line per schedule."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from bokeh.models import ColumnDataSource, HoverTool, Range1d
from bokeh.plotting import figure

from ringloom.report.pictures.frames import in_bytes, timed
from ringloom.report.pictures.palette import DASHES, OKABE_ITO
from ringloom.views.units import seconds, size
from simulator.facts import Usage


def look_of(number: int, lines: int) -> dict[str, Any]:
    """The look of a line; where later ones coincide with it, both can be seen: it is wider."""
    return {
        "line_color": OKABE_ITO[number % len(OKABE_ITO)],
        "line_width": min(10.0, 2.5 + 1.5 * (lines - number - 1)),
        "line_dash": DASHES[number % len(DASHES)],
    }


class MemoryPicture:
    """Up to as many lines as schedules; colours and dashes tell them apart."""

    def __init__(self, axis: Range1d, lines: int) -> None:
        self.figure = timed(
            "memory", height=300, x_range=axis, y_range=Range1d(0, 1), y_axis_label="memory"
        )
        self.figure.yaxis[0].update(**in_bytes(8))
        self.sources = [ColumnDataSource(data={}, name=f"memory-{n}") for n in range(lines)]
        self.lines = [
            self.figure.step(x="x", y="y", mode="after", **look_of(n, lines), source=source)
            for n, source in enumerate(self.sources)
        ]
        tip = '<div style="color:#111"><b>@name</b><br>@words</div>'
        self.figure.add_tools(HoverTool(renderers=self.lines, tooltips=tip, line_policy="prev"))

    def show(self, held: Sequence[tuple[str, Usage]]) -> figure:
        """Draw the lines of these schedules."""
        most = max((one.peak for _, one in held), default=0)
        self.figure.y_range.end = 1.05 * most or 1.0
        for (name, one), source in zip(held, self.sources, strict=False):
            pairs = zip(one.seconds.tolist(), one.bytes.tolist(), strict=True)
            source.data = {
                "x": one.seconds * 1e3,
                "y": one.bytes,
                "name": np.full(len(one.bytes), f"{name}, rank {one.rank}", object),
                "words": [f"from {seconds(t)} on: {size(b)} ({b:,} bytes)" for t, b in pairs],
            }
        return self.figure
