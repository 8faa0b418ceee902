"""Figures of a comparison: its bars, and timeline, load, memory and traffic of each schedule."""

from collections.abc import Callable
from functools import partial

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ringloom.comparison import Comparison


def drawings(compared: Comparison) -> dict[str, Callable[[], Figure]]:
    """Returns a function per figure, by the name of its file."""
    figures: dict[str, Callable[[], Figure]] = {
        "comparison": partial(_alone, compared.plot, compared.title)
    }
    for case in compared.cases:
        name, one = case.row.schedule, case.prediction
        file = name.replace(":", "-").replace("=", "")
        for what in ("timeline", "load", "memory", "traffic"):
            plot = getattr(one, f"plot_{what}")
            figures[f"{file}_{what}"] = partial(_alone, plot, f"{name}: {what}")
    return figures


def _alone(plot: Callable[[Axes], Axes], title: str) -> Figure:
    figure = Figure(figsize=(7.0, 3.6), layout="constrained")
    plot(figure.subplots())
    figure.suptitle(title, fontsize=8)
    return figure
