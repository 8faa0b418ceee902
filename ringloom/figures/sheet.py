"""The style of all figures, their files, and the figures of a comparison.

These are the bars of all schedules, and the timeline, load, memory and traffic of each schedule.
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
    settings = {**matplotlib.rcParamsDefault, **STYLE, "backend": "agg"}
    context: AbstractContextManager[Any] = matplotlib.rc_context(settings)
    return context


def write(
    draw: Callable[[], Figure], name: str, folder: Path, formats: tuple[str, ...]
) -> list[Path]:
    """Draws a figure, writes it in each format, and returns the paths.

    Raises RingloomError if a file cannot be written.
    """
    with style():
        figure, paths = draw(), []
        for extension in formats:
            content, path = BytesIO(), folder / f"{name}.{extension}"
            metadata = dict(NO_DATE[extension])
            figure.savefig(content, format=extension, metadata=metadata, bbox_inches="tight")
            disk.make_folder(folder)
            disk.write(path, content.getvalue())
            paths.append(path)
    return paths


def drawings(comparison: Comparison) -> dict[str, Callable[[], Figure]]:
    """Returns a function per figure that draws it, by file name."""
    figures: dict[str, Callable[[], Figure]] = {
        "comparison": partial(_one_plot, comparison.plot, comparison.title)
    }
    for case in comparison.cases:
        name = case.row.schedule
        stem = name.replace(":", "-").replace("=", "").replace(" --trim ", "-")
        for kind in ("timeline", "load", "memory", "traffic"):
            plot = getattr(case.prediction, f"plot_{kind}")
            figures[f"{stem}_{kind}"] = partial(_one_plot, plot, f"{name}: {kind}")
    return figures


def _one_plot(plot: Callable[[Axes], Axes], title: str) -> Figure:
    figure = Figure(figsize=(7.0, 3.6), layout="constrained")
    plot(figure.subplots())
    figure.suptitle(title, fontsize=8, wrap=True)
    return figure
