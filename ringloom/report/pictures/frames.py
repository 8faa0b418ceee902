"""The frame of all pictures, and the ticks of their axes."""

from typing import Any

from bokeh import models
from bokeh.plotting import figure

TIP = '<div style="max-width:18rem;color:#111">{}</div>'
POWERS = [1 << n for n in range(10)]  # mantissas of ticks on an axis of bytes
# Formats a tick like `ringloom.views.units.size`, padded with blanks to a fixed width.
BYTES = """
const power = Math.min(4, Math.floor(Math.log2(Math.max(1, tick)) / 10))
const unit = ["B", "KiB", "MiB", "GiB", "TiB"][power]
const text = `${Number((tick / 1024 ** power).toPrecision(3))} ${unit}`
return text.padStart(characters, "\u2007")
"""
LABEL = {
    **{key: key for key in ("x", "y", "text")},
    "text_color": "ink",
    "text_align": "center",
    "text_baseline": "middle",
    "text_font_size": "12px",
    "text_font_style": "bold",
}


def frame(name: str, **options: Any) -> figure:
    """Returns a figure that fills the width, without tools, whose ranges are set explicitly."""
    defaults = {"border_fill_color": None, "sizing_mode": "stretch_width", "min_width": 220}
    defaults |= {"tools": "", "toolbar_location": None}
    ranges = {axis: models.Range1d(0, 1) for axis in ("x_range", "y_range")}
    plot = figure(name=name, **(defaults | ranges | options))
    plot.axis.major_label_policy = models.NoOverlap(min_distance=8)
    return plot


def time_frame(name: str, **options: Any) -> figure:
    """Returns a frame over milliseconds that a reader can pan and zoom."""
    tools = {"tools": "xpan,xwheel_zoom,xbox_zoom,reset", "toolbar_location": "above"}
    inactive = {"active_drag": None, "active_scroll": None, "x_axis_label": "time (ms)"}
    plot = frame(name, **{"min_width": 240, **tools, **inactive, **options})
    plot.toolbar.logo, plot.toolbar.autohide = None, True
    plot.xaxis.formatter = models.BasicTickFormatter(use_scientific=False)  # 0.007, not 7.000e-3
    return plot


def add_tooltip(plot: figure, renderers: list[Any], tip: str, **options: Any) -> None:
    """Adds a tooltip to some glyphs of a figure."""
    plot.add_tools(models.HoverTool(renderers=renderers, tooltips=TIP.format(tip), **options))


def use_integer_axes(plot: figure) -> None:
    """Sets integer ticks on both axes, and removes the grid."""
    plot.grid.visible = False
    for axis in (*plot.xaxis, *plot.yaxis):
        axis.ticker = models.BasicTicker(min_interval=1, num_minor_ticks=0)


def draw_cells(plot: figure, source: Any, colours: Any) -> Any:
    """Draws cells as one image, with position and size from the source."""
    fields = {name: name for name in ("image", "x", "y", "dw", "dh")}
    return plot.image(**fields, color_mapper=colours, source=source)


def fixed_width(characters: int) -> models.CustomJSTickFormatter:
    """Returns a formatter of fixed width, so that longer numbers do not move the picture."""
    code = f'return String(Number(tick.toPrecision(6))).padStart({characters}, "\\u2007")'
    return models.CustomJSTickFormatter(code=code)


def byte_ticks(characters: int = 0) -> dict[str, Any]:
    """Returns the ticker and formatter of an axis or colour bar in bytes."""
    return {
        "ticker": models.AdaptiveTicker(base=1024, mantissas=POWERS, min_interval=1),
        "formatter": models.CustomJSTickFormatter(args={"characters": characters}, code=BYTES),
    }
