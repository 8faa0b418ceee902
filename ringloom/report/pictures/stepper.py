"""The stepper picture: mask tiles in the colours of their ranks, and the messages of a step.

`page/stepper.js` draws a step in the browser whenever `state` or `facts` change. A page selects the
step by writing to `state` (`page/steps.js`), which is not sent to the server.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from bokeh import models
from bokeh.colors import RGB
from bokeh.plotting import figure
from numpy.typing import NDArray

from ringloom.report import asset
from ringloom.report.facts.tiles import TileFacts
from ringloom.report.pictures.frames import (
    LABEL,
    add_tooltip,
    draw_cells,
    fixed_width,
    frame,
    use_integer_axes,
)
from ringloom.report.pictures.palette import COMING, DONE, PAPER, rank_colours
from ringloom.simulator.pictures import SEND

MOST_ARROWS = 16  # ranks; with more, messages are drawn as cells, from row to column
ENDS = "x0 y0 x1 y1 src dst parts width"  # columns of `messages`
NO_IMAGE = {"image": [np.zeros((1, 1), np.float32)], "x": [0], "y": [0], "dw": [1], "dh": [1]}
DARK_INK, LIGHT_INK = "#000000", "#ffffff"


class StepperPicture:
    """The figures `tiles` and `ways`, which show step `state.data.step` of one of `facts`."""

    def __init__(self, ranks: int) -> None:
        self.facts = models.ColumnDataSource(data={}, name="facts")
        # The step is -1 so that writing the first step is a change, which draws it.
        self.state = _local_source("state", {"leg": [0], "step": [-1], "cut": [0]})
        self.pixels = _local_source("pixels", NO_IMAGE)
        self.labels = _local_source("labels", _empty("x y text ink size"))
        self.places = _local_source("places", {})
        self.messages = _local_source("messages", _empty(ENDS))
        self.heads = _local_source("arrow-heads", _empty(ENDS))
        # Tiles that are not computed in this step are off the scale; the theme sets their colours.
        self.colours = models.LinearColorMapper(
            palette=["#000000"],
            name="ranks",
            low_color=PAPER,
            high_color=COMING,
            nan_color=DONE,
        )
        self.tiles = self._tiles()
        self.ways = self._ways()
        self.ranks = 0
        self._set_ranks(ranks)
        self.draw = models.CustomJS(
            args={
                name: getattr(self, name)
                for name in ("state", "facts", "pixels", "labels", "places", "messages", "heads")
            }
            | {"axes": [self.tiles.x_range, self.tiles.y_range]},
            code=asset("stepper.js"),
        )
        self.state.js_on_change("data", self.draw)
        self.facts.js_on_change("data", self.draw)

    def show(self, facts: Sequence[TileFacts]) -> None:
        """Shows facts, an entry per pass and schedule, all with the same number of ranks."""
        self._set_ranks(facts[0].ranks if facts else 1)
        self.facts.data = columns(facts)

    def _set_ranks(self, ranks: int) -> None:
        """Sets the positions and colours of ranks; does nothing for the same number of ranks."""
        if self.ranks == ranks:
            return
        self.ranks = ranks
        self.colours.palette = rank_colours(ranks)
        self.colours.low, self.colours.high = -0.5, ranks - 0.5
        self.places.data = _circle(ranks)
        matrix, last = ranks > MOST_ARROWS, ranks - 0.5
        for glyph in self.arrows:
            glyph.visible = not matrix
        for part in (self.scale, self.cells, *self.ways.axis):
            part.visible = matrix
        x, y = ((-0.5, last), (last, -0.5)) if matrix else ((-1.25, 1.25), (-1.25, 1.25))
        self.ways.x_range.update(start=x[0], end=x[1])
        self.ways.y_range.update(start=y[0], end=y[1])

    def _tooltip(self, file: str, **sources: models.ColumnDataSource) -> models.CustomJSHover:
        """Returns a tooltip with a text from a script of the page."""
        args = {"state": self.state, "facts": self.facts} | sources
        return models.CustomJSHover(args=args, code=asset(file))

    def _tiles(self) -> figure:
        plot = frame(
            "tiles",
            aspect_ratio=1.1,
            x_axis_label="keys and values, piece by piece",
            y_axis_label="queries, piece by piece",
            y_range=models.Range1d(1, 0),
        )
        image = draw_cells(plot, self.pixels, self.colours)
        plot.text(**LABEL | {"text_font_size": "size"}, source=self.labels)
        words = self._tooltip("tile_hover.js")
        add_tooltip(plot, [image], "@image{custom}", formatters={"@image": words})
        use_integer_axes(plot)
        plot.yaxis.formatter = fixed_width(3)
        rank = models.CustomJSTickFormatter(code="return `rank ${tick}`")
        self.scale = models.ColorBar(
            color_mapper=self.colours,
            width=10,
            padding=4,
            ticker=models.BasicTicker(min_interval=1),
            formatter=rank,
        )
        plot.add_layout(self.scale, "right")
        return plot

    def _ways(self) -> figure:
        plot = frame("ways", aspect_ratio=1.1)
        plot.grid.visible = False
        plot.xaxis.axis_label, plot.yaxis.axis_label = "to rank", "from rank"
        style: dict[str, Any] = {"line_width": "width", "line_color": "#7F7F7F"}
        ways = plot.segment("x0", "y0", "x1", "y1", **style, source=self.messages)
        style = {"fill_color": SEND, "line_color": None}
        cells = plot.rect("dst", "src", 1, 1, **style, source=self.messages)
        head = models.NormalHead(size=9, fill_color="#7F7F7F", line_color=None)
        ends = {"x_start": "x0", "y_start": "y0", "x_end": "x1", "y_end": "y1"}
        arrow = models.Arrow(end=head, source=self.heads, line_alpha=0, **ends)
        plot.add_layout(arrow)
        style = {"size": "size", "fill_color": "fill", "line_color": "line", "line_width": 2}
        circle = plot.scatter("x", "y", **style, source=self.places)
        names = plot.text(**LABEL, source=self.places)
        self.cells, self.arrows = cells, (ways, arrow, circle, names)
        words = {"@parts": self._tooltip("way_hover.js", messages=self.messages)}
        tip = "rank @src to @dst: @parts{custom}"
        add_tooltip(plot, [ways, cells], tip, line_policy="interp", formatters=words)
        return plot


def columns(facts: Sequence[TileFacts]) -> dict[str, list[Any]]:
    """Returns the columns that `stepper.js` reads, with an entry per pass and schedule."""
    return {
        "title": [f.title for f in facts],
        "size": [[*f.step.shape, *f.pixels_per_piece, f.ranks, f.steps] for f in facts],
        "step": [narrow(f.step).ravel() for f in facts],
        "rank": [narrow(f.rank).ravel() for f in facts],
        "live": [(f.shares > 0).astype(np.uint8).ravel() for f in facts],
        "image": [np.zeros(f.shares.shape, np.float32) for f in facts],
        "busy": [f.busy.astype(np.uint8).ravel() for f in facts],
        "pairs": [f.pairs.astype(np.float64).ravel() for f in facts],
        "heads": [list(f.shown_heads) for f in facts],
        "note": [f.note for f in facts],
        "q_names": [list(f.names[0]) for f in facts],
        "kv_names": [list(f.names[1]) for f in facts],
        "words": [[f.words(step) for step in range(f.steps)] for f in facts],
        "at": [np.array([m.step for m in f.messages], np.int32) for f in facts],
        "src": [np.array([m.src for m in f.messages], np.int32) for f in facts],
        "dst": [np.array([m.dst for m in f.messages], np.int32) for f in facts],
        "bytes": [np.array([m.bytes for m in f.messages], np.float64) for f in facts],
        "sent": [[m.name for m in f.messages] for f in facts],
    }


def narrow(numbers: NDArray[np.int32]) -> NDArray[np.int16] | NDArray[np.int32]:
    """Returns the numbers in two bytes each if they fit, to send less to the browser."""
    fits = np.abs(numbers).max(initial=0) < 1 << 15
    return numbers.astype(np.int16) if fits else numbers.astype(np.int32)


def _local_source(name: str, data: dict[str, Any]) -> models.ColumnDataSource:
    """Returns a source whose changes in the browser are not sent to the server."""
    return models.ColumnDataSource(data=data, name=name, syncable=False)


def _empty(names: str) -> dict[str, list[Any]]:
    return {name: [] for name in names.split()}


def _circle(ranks: int) -> dict[str, list[Any]]:
    """Returns positions of ranks on a circle, clockwise from the top, with their labels."""
    angles = [2 * math.pi * r / ranks for r in range(ranks)]
    colours, is_small = rank_colours(ranks), ranks <= 24
    return {
        "x": [math.sin(angle) for angle in angles],
        "y": [math.cos(angle) for angle in angles],
        "text": [str(r) if is_small or r % 8 == 0 else "" for r in range(ranks)],
        "size": [28 if is_small else 13] * ranks,
        "colour": colours,
        "fill": colours,
        "line": colours if is_small else ["#7F7F7F"] * ranks,
        "ink": [ink_on(c) for c in colours],
        "on": [ink_on(c) for c in colours],
    }


def ink_on(colour: str) -> str:
    """Returns black or white, whichever has more contrast with a colour (WCAG luminance)."""
    return DARK_INK if RGB.from_hex_string(colour).luminance > 0.179 else LIGHT_INK
