"""The style of all figures, files whose bytes never change, and the figures of a comparison.

Those are the bars of all schedules, and the timeline, load, memory and traffic of each.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ringloom.comparison import Comparison
from ringloom.planner import disk

INK, LINE, WASTE = "#1b1f24", "#b8c0c8", "#e3e7eb"
STYLE: dict[str, Any] = {
    "svg.hashsalt": "ringloom",  # makes ids of clip paths reproducible
    "svg.fonttype": "path",
    "font.family": "DejaVu Sans",  # comes with matplotlib
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.linewidth": 0.6,
    "hatch.linewidth": 0.5,
    "figure.dpi": 100,
    "savefig.dpi": 300,
    "path.simplify": True,
}
NO_DATE: Mapping[str, Mapping[str, Any]] = {
    "svg": {"Date": None, "Creator": "ringloom"},
    "png": {"Software": None},
}


def style() -> AbstractContextManager[Any]:
    """Returns a context with the style of all figures, independent of the user's matplotlibrc."""
    context: AbstractContextManager[Any] = matplotlib.rc_context(
        {**matplotlib.rcParamsDefault, **STYLE, "backend": "agg"}
    )
    return context


def write(
    draw: Callable[[], Figure], name: str, folder: Path, formats: tuple[str, ...]
) -> list[Path]:
    """Draws a figure, writes it in each format and returns the paths; raises RingloomError if a
    file cannot be written."""
    with style():
        figure, files = draw(), []
        for kind in formats:
            drawn, file = BytesIO(), folder / f"{name}.{kind}"
            figure.savefig(drawn, format=kind, metadata=dict(NO_DATE[kind]), bbox_inches="tight")
            disk.make_folder(folder)
            disk.write(file, drawn.getvalue())
            files.append(file)
    return files


def drawings(compared: Comparison) -> dict[str, Callable[[], Figure]]:
    """Returns the functions that draw the figures, by file name."""
    figures: dict[str, Callable[[], Figure]] = {
        "comparison": partial(_alone, compared.plot, compared.title)
    }
    for case in compared.cases:
        name, one = case.row.schedule, case.prediction
        file = name.replace(":", "-").replace("=", "").replace(" --trim ", "-")
        for what in ("timeline", "load", "memory", "traffic"):
            plot = getattr(one, f"plot_{what}")
            figures[f"{file}_{what}"] = partial(_alone, plot, f"{name}: {what}")
    return figures


def _alone(plot: Callable[[Axes], Axes], title: str) -> Figure:
    figure = Figure(figsize=(7.0, 3.6), layout="constrained")
    plot(figure.subplots())
    figure.suptitle(title, fontsize=8, wrap=True)
    return figure
