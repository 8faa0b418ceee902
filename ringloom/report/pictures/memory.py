"""Memory over time of the worst rank, a line per schedule."""

from collections.abc import Sequence

import numpy as np
from bokeh.models import ColumnDataSource, HoverTool, Range1d

from ringloom.report.pictures.frames import in_bytes, timed
from ringloom.report.pictures.palette import DASHES, OKABE_ITO
from ringloom.views.units import seconds, size
from simulator.facts import Usage


def width_of(number: int, lines: int) -> float:
    """Earlier lines are wider: where they coincide with later ones, both can be seen."""
    return min(10.0, 2.5 + 1.5 * (lines - number - 1))


def colour_of(number: int) -> str:
    """The colour of a line."""
    return OKABE_ITO[number % len(OKABE_ITO)]


def dash_of(number: int) -> list[int]:
    """Its dashes in pixels, as in bokeh's names, for a legend."""
    lengths = {"solid": [], "dashed": [6], "dotted": [2, 4], "dotdash": [2, 4, 6, 4]}
    return lengths.get(DASHES[number % len(DASHES)], [6, 4, 2, 4])


class MemoryPicture:
    """Up to as many lines as schedules; colours and dashes tell them apart."""

    def __init__(self, axis: Range1d, lines: int) -> None:
        self.figure = timed(
            "memory", height=300, x_range=axis, y_range=Range1d(0, 1), y_axis_label="memory"
        )
        self.figure.yaxis[0].update(**in_bytes(8))
        self.sources = [ColumnDataSource(data={}, name=f"memory-{n}") for n in range(lines)]
        drawn = zip(range(lines), self.sources, strict=True)
        self.lines = [self._line(n, source, width_of(n, lines)) for n, source in drawn]
        tip = '<div style="color:#111"><b>@name</b><br>@words</div>'
        self.figure.add_tools(HoverTool(renderers=self.lines, tooltips=tip, line_policy="prev"))

    def _line(self, number: int, source: ColumnDataSource, width: float):  # type: ignore[no-untyped-def]
        return self.figure.step(
            x="x",
            y="y",
            mode="after",
            line_width=width,
            line_color=colour_of(number),
            line_dash=DASHES[number % len(DASHES)],
            source=source,
        )

    def show(self, held: Sequence[tuple[str, Usage]]) -> None:
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
