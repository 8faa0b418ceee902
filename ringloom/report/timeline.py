"""The timeline picture: a lane of compute and a lane of links per rank, on an axis of time."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from bokeh.models import ColumnDataSource, CustomJSTickFormatter, FixedTicker, HoverTool, Range1d
from bokeh.plotting import figure

from ringloom.drawing import seconds
from ringloom.report.palette import PAPER, STREAM_COLOURS
from ringloom.report.recorded import Recorded
from ringloom.report.spans import SHOWN, STREAMS, Bars

TIP = """
<div style="max-width:20rem;color:#111"><b>rank @rank</b> @name<br>
@when, takes @takes<br>step @step</div>
"""
LABELLED = 16  # rank numbers along the axis at the most
TOOLS = "xpan,xwheel_zoom,xbox_zoom,reset"


class TimelinePicture:
    """One schedule; `show` draws other bars in the same picture."""

    def __init__(self, name: str, axis: Range1d) -> None:
        self.source = ColumnDataSource(data={}, name=f"{name}-bars")
        self.figure = figure(
            name=name,
            x_range=axis,
            y_range=Range1d(1, 0),
            tools=TOOLS,
            active_drag=None,
            active_scroll=None,
            sizing_mode="stretch_width",
            min_width=240,
            toolbar_location="above",
            x_axis_label="milliseconds",
            y_axis_label="rank",
            output_backend="canvas",
        )
        bars = self.figure.hbar(
            y="lane",
            left="left",
            right="right",
            height="height",
            fill_color="colour",
            line_color=None,
            hatch_pattern="hatch",
            hatch_color=PAPER,
            hatch_alpha=0.6,
            hatch_weight=1,
            hatch_scale=6,
            source=self.source,
        )
        self.figure.add_tools(HoverTool(renderers=[bars], tooltips=TIP, attachment="vertical"))
        self.figure.ygrid.visible = False
        self.figure.toolbar.logo = None
        self.figure.toolbar.autohide = True
        self.figure.yaxis.formatter = CustomJSTickFormatter(
            code="return Math.floor(tick).toFixed()"
        )

    def show(self, bars: Bars, ranks: int, run: Recorded | None = None) -> None:
        """Draw bars; those of a recorded run below the predicted ones of the same rank."""
        lanes = 2 if run is None else 4
        parts = [_columns(bars, 0, lanes, "predicted", ranks <= LABELLED)]
        if run is not None:
            parts.append(_columns(run.bars, 2, lanes, "measured", True))
        self.source.data = {
            key: _joined([part[key] for part in parts])
            for key in ("lane", "left", "right", "height", "colour", "hatch", "rank", "step")
        } | {key: [one for part in parts for one in part[key]] for key in ("name", "when", "takes")}
        shown = min(ranks, SHOWN)
        self.figure.y_range.start, self.figure.y_range.end = shown, 0
        self.figure.height = 84 + max(60, min(720, shown * lanes * (9 if shown <= 16 else 5)))
        every = -(-shown // LABELLED)
        self.figure.yaxis.ticker = FixedTicker(ticks=[r + 0.5 for r in range(0, shown, every)])


def _joined(parts: Sequence[Any]) -> Any:
    return np.concatenate(parts)


def _columns(bars: Bars, first: int, lanes: int, kind: str, roomy: bool) -> dict[str, Any]:
    """Attends and merges on lane `first` of each rank, what it sends on the lane below.

    Bars too thin for it are not hatched.
    """
    link = bars.stream == STREAMS.index("send")
    colours = np.array([STREAM_COLOURS.get(s, STREAM_COLOURS["send"]) for s in STREAMS])
    times = zip(bars.start.tolist(), bars.end.tolist(), strict=True)
    measured = kind == "measured"
    hatched = (bars.stream == STREAMS.index("merge")) & roomy
    hatch = np.where(hatched, "/", " ").astype(object)
    return {
        "lane": bars.rank + (first + link + 0.5) / lanes,
        "left": bars.start * 1e3,
        "right": bars.end * 1e3,
        "height": np.where(link, 0.6, 0.86) / lanes,
        "colour": colours[bars.stream].astype(object),
        "hatch": np.full(len(bars), "\\", object) if measured else hatch,
        "rank": bars.rank,
        "step": bars.step + 1,
        "name": [f"{kind}: {name}" for name in bars.names],
        "when": [f"{seconds(a)} to {seconds(b)}" for a, b in times],
        "takes": [seconds(t) for t in (bars.end - bars.start).tolist()],
    }
