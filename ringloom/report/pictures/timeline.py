"""The timeline picture: per rank, a lane of compute and a lane of transfers."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from bokeh import models
from bokeh.plotting import figure
from numpy.typing import NDArray

from ringloom.report.facts.recorded import Recorded
from ringloom.report.pictures.frames import time_frame
from ringloom.report.pictures.palette import IDLE, PAPER, STREAM_COLOURS
from ringloom.simulator.pictures import SEND, ranks_label
from ringloom.simulator.timeline import STREAMS, Span

TIP = """
<div style="max-width:20rem;color:#111"><b>rank @rank</b> @name<br>
starts at @since{custom}, takes @takes{custom}<br>step @step</div>
"""
MOMENT = "return `${Number(value.toPrecision(6))} ms`"
COLUMNS = ("lane", "left", "right", "height", "since", "takes", "stream", "rank", "step")
PALETTE = [STREAM_COLOURS.get(stream, SEND) for stream in STREAMS]
HATCHES = "/", "\\"  # of predicted merges, and of measured bars
BAR = 0.86  # height of a bar, relative to its lane
MOST_LABELS = 16  # ranks named along the axis


class TimelinePicture:
    """The timeline of one schedule; `show` replaces its bars."""

    def __init__(self, name: str, axis: models.Range1d) -> None:
        self.source = models.ColumnDataSource(data={}, name=f"{name}-bars")
        # One source per pattern: drawing a thousand bars with a pattern column takes a second.
        self.hatched = [models.ColumnDataSource(data={}) for _ in HATCHES]
        self.figure = time_frame(name, x_range=axis, output_backend="canvas")
        edges = {"y": "lane", "left": "left", "right": "right", "height": "height"}
        bars = self.figure.hbar(
            **edges,
            fill_color={
                "field": "stream",
                "transform": models.LinearColorMapper(
                    palette=PALETTE, low=0, high=len(PALETTE) - 1
                ),
            },
            line_color=None,
            # Never shown; without these constants the browser computes more colours for every bar.
            selection_color=SEND,
            nonselection_color=SEND,
            muted_color=SEND,
            source=self.source,
        )
        for pattern, source in zip(HATCHES, self.hatched, strict=True):
            self.figure.hbar(
                **edges,
                fill_color=None,
                line_color=None,
                hatch_pattern=pattern,
                hatch_color=PAPER,
                hatch_alpha=0.6,
                hatch_weight=1,
                hatch_scale=6,
                source=source,
            )
        self.idle = models.ColumnDataSource(data={}, name=f"{name}-idle")
        shading = self.figure.hbar(
            **edges, fill_color=IDLE, line_color=None, level="underlay", source=self.idle
        )
        shading.glyph.name = "idle"
        moment = models.CustomJSHover(code=MOMENT)
        hover = models.HoverTool(renderers=[bars], tooltips=TIP, attachment="vertical")
        hover.formatters = {"@since": moment, "@takes": moment}
        self.figure.add_tools(hover)
        self.figure.ygrid.visible = False
        self.ticks = models.FixedTicker(ticks=[])
        self.figure.yaxis.ticker = self.ticks

    def show(
        self,
        bars: Sequence[Span],
        ranks: int,
        shown: Sequence[int],
        run: Recorded | None = None,
        scale: float = 1.0,
        makespan: float | None = None,
    ) -> figure:
        """Draws the bars of the `shown` ranks, and below them those of a recorded run.

        Idle time is shaded up to the `makespan` [s], by default the end of the last bar. `scale`
        multiplies the times of a run, but not those in its tooltips.
        """
        lanes = 2 if run is None else 4
        last = max((bar.end for bar in bars), default=0.0) if makespan is None else makespan
        ends = [(0, last)] * bool(bars)
        ends += [(2, run.makespan * scale)] if run is not None else []
        self.idle.data = _shading(len(shown), lanes, ends)
        rows = np.array(shown)
        parts = [_columns(bars, rows, 0, lanes)]
        names = [f"predicted: {bar.name}" for bar in bars]
        if run is not None:
            run_bars = [bar for bar in run.bars if bar.rank in {*shown}]
            parts.append(_columns(run_bars, rows, 2, lanes, scale))
            names += [f"measured: {bar.name}" for bar in run_bars]
        data = {key: np.concatenate([part[key] for part in parts]) for key in COLUMNS}
        self.source.data = data | {"name": names}
        merges = data["stream"] == STREAMS.index("merge")
        measured = np.arange(len(merges)) >= len(bars)
        for source, selected in zip(self.hatched, (merges & ~measured, measured), strict=True):
            source.data = {key: data[key][selected] for key in COLUMNS[:4]}
        count = len(shown)
        self.figure.y_range.start, self.figure.y_range.end = count, 0
        self.figure.height = 84 + max(60, min(1600, count * lanes * (9 if count <= 16 else 6)))
        spacing = -(-count // MOST_LABELS)
        # Updates the ticker: for a new one the server would search the document.
        self.ticks.ticks = [row + 0.5 for row in range(0, count, spacing)]
        labels = {row + 0.5: str(rank) for row, rank in enumerate(shown)}
        self.figure.yaxis.major_label_overrides = labels
        self.figure.yaxis.axis_label = ranks_label(count, ranks)
        return self.figure


def _shading(ranks: int, lanes: int, ends: Sequence[tuple[int, float]]) -> dict[str, Any]:
    """Returns columns of bars from 0 to an end [s], for each (lane, end) and rank."""
    bars = [(row + (lane + 0.5) / lanes, end) for lane, end in ends for row in range(ranks)]
    return {
        "lane": [lane for lane, _ in bars],
        "left": [0.0] * len(bars),
        "right": [1e3 * end for _, end in bars],
        "height": [BAR / lanes] * len(bars),
    }


def _columns(
    bars: Sequence[Span], ranks: NDArray[np.int_], first: int, lanes: int, scale: float = 1.0
) -> dict[str, Any]:
    """Returns columns of bars: attention, merges and waits in lane `first`, sends in the next."""
    rank, step = (np.array([getattr(bar, n) for bar in bars], np.int32) for n in ("rank", "step"))
    start, end = (np.array([getattr(bar, n) for bar in bars], float) for n in ("start", "end"))
    stream = np.array([STREAMS.index(bar.stream) for bar in bars], np.int8)
    link, wait = (stream == STREAMS.index(name) for name in ("send", "wait"))
    return {
        "lane": np.searchsorted(ranks, rank) + (first + link + 0.5) / lanes,
        "left": start * 1e3 * scale,
        "right": end * 1e3 * scale,
        "since": start * 1e3,
        "height": np.where(wait, 0.3, np.where(link, 0.6, BAR)) / lanes,
        "stream": stream,
        "rank": rank,
        "step": step + 1,
        "takes": (end - start) * 1e3,
    }
