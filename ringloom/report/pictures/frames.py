"""The frame of all pictures, and the numbers along their axes."""

from typing import Any

from bokeh import models
from bokeh.plotting import figure

TIP = '<div style="max-width:18rem;color:#111">{}</div>'
POWERS = [1 << n for n in range(10)]  # mantissas of ticks on an axis of bytes
# Formats a tick like `ringloom.views.units.size`, fixed_width with blanks.
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


def frame(name: str, **more: Any) -> figure:
    """Returns a figure that fills the width, without tools, and with ranges that can be set."""
    usual = {"border_fill_color": None, "sizing_mode": "stretch_width", "min_width": 220}
    usual |= {"tools": "", "toolbar_location": None}
    ranges = {axis: models.Range1d(0, 1) for axis in ("x_range", "y_range")}
    drawn = figure(name=name, **(usual | ranges | more))
    drawn.axis.major_label_policy = models.NoOverlap(min_distance=8)
    return drawn


def time_frame(name: str, **more: Any) -> figure:
    """Returns a frame over milliseconds that a reader can pan and zoom."""
    tools = {"tools": "xpan,xwheel_zoom,xbox_zoom,reset", "toolbar_location": "above"}
    still = {"active_drag": None, "active_scroll": None, "x_axis_label": "time (ms)"}
    drawn = frame(name, **{"min_width": 240, **tools, **still, **more})
    drawn.toolbar.logo, drawn.toolbar.autohide = None, True
    drawn.xaxis.formatter = models.BasicTickFormatter(use_scientific=False)  # 0.007, not 7.000e-3
    return drawn


def hover(drawn: figure, renderers: list[Any], tip: str, **more: Any) -> None:
    """Adds a tooltip to some glyphs of a figure."""
    drawn.add_tools(models.HoverTool(renderers=renderers, tooltips=TIP.format(tip), **more))


def use_integer_axes(drawn: figure) -> None:
    """Puts integers along both axes, and removes the grid."""
    drawn.grid.visible = False
    for axis in (*drawn.xaxis, *drawn.yaxis):
        axis.ticker = models.BasicTicker(min_interval=1, num_minor_ticks=0)


def cells_image(drawn: figure, source: Any, colours: Any) -> Any:
    """Draws cells as one image; the source holds its position and size too."""
    place = {name: name for name in ("image", "x", "y", "dw", "dh")}
    return drawn.image(**place, color_mapper=colours, source=source)


def fixed_width(characters: int) -> models.CustomJSTickFormatter:
    """Returns a formatter of fixed width, so that longer numbers do not move the picture."""
    code = f'return String(Number(tick.toPrecision(6))).padStart({characters}, "\\u2007")'
    return models.CustomJSTickFormatter(code=code)


def byte_ticks(characters: int = 0) -> dict[str, Any]:
    """Returns ticker and formatter of bytes for an axis or a colour bar."""
    return {
        "ticker": models.AdaptiveTicker(base=1024, mantissas=POWERS, min_interval=1),
        "formatter": models.CustomJSTickFormatter(args={"characters": characters}, code=BYTES),
    }
