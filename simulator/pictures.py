"""Pictures of a prediction on matplotlib axes; each draws on the axes that it is given.

Without axes, a new figure is made; the axes are returned, to be labelled or saved as one likes.
"""

from collections import defaultdict
from importlib import import_module
from typing import Any

import numpy as np

from planner.errors import RingloomError
from simulator.bars import bars_of, representatives
from simulator.facts import by_nodes, over_average, plans_of, traffic_of, usage, work_of
from simulator.prediction import Prediction

Axes = Any  # of matplotlib, which counts as untyped
COMPUTE, MERGE, SEND, WAIT = "#0072B2", "#E69F00", "#009E73", "#D55E00"
LANES = {
    "compute": (0.05, 0.5, COMPUTE),
    "merge": (0.05, 0.5, MERGE),
    "wait": (0.2, 0.2, WAIT),
    "send": (0.6, 0.3, SEND),
}
LOAD_LABEL = "query-key pairs / average"
GAPS = 64  # ranks whose bars stand apart
UNITS = {"GiB": 1 << 30, "MiB": 1 << 20, "KiB": 1 << 10, "B": 1}


def new_axes(axes: Axes | None) -> Axes:
    """Returns the axes, or those of a new figure; raises RingloomError without matplotlib."""
    if axes is not None:
        return axes
    try:
        _, made = import_module("matplotlib.pyplot").subplots(layout="constrained")
    except ModuleNotFoundError:
        message = "matplotlib is not installed: pip install 'ringloom[plots]'"
        raise RingloomError(message) from None
    return made


def _unit(most: int) -> str:
    """Returns the largest unit of which so many bytes are at least one."""
    return next((unit for unit, scale in UNITS.items() if most >= scale), "B")


def ranks_label(shown: int, ranks: int) -> str:
    """Returns the label of an axis of ranks, of which some are shown."""
    return f"{shown} of {ranks} ranks" if shown < ranks else "rank"


def link_labels(cell: int) -> tuple[str, str]:
    """Returns the labels of both axes of a table of links; a cell stands for so many ranks."""
    cells = f", {cell} to a cell" if cell > 1 else ""
    return f"to rank{cells}", f"from rank{cells}"


def draw_timeline(prediction: Prediction, axes: Axes | None, ranks: list[int] | None) -> Axes:
    """Draw a row per rank: above what it computes, merges and waits for, below what it sends."""
    axes, shown = new_axes(axes), representatives(prediction) if ranks is None else ranks
    pieces = defaultdict[tuple[int, str], list[tuple[float, float]]](list)
    for bar in bars_of(prediction, shown):
        pieces[bar.rank, bar.stream].append((1e3 * bar.start, 1e3 * (bar.end - bar.start)))
    for row, rank in enumerate(shown):
        for stream, (bottom, height, colour) in LANES.items():
            label = "" if row else stream
            place = (row + bottom, height)
            axes.broken_barh(pieces[rank, stream], place, facecolors=colour, lw=0, label=label)
    axes.set_xlim(0, 1e3 * prediction.makespan or 1.0)
    axes.set_ylim(len(shown), 0)
    axes.set_yticks([n + 0.5 for n in range(len(shown))], list(map(str, shown)))
    axes.set(xlabel="time (ms)", ylabel=ranks_label(len(shown), prediction.ranks))
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=4, frameon=False)
    return axes


def draw_load(prediction: Prediction, axes: Axes | None) -> Axes:
    """Work of each rank over the average: a bar per rank."""
    axes = new_axes(axes)
    share = over_average(work_of(plans_of(prediction)))
    width = 0.8 if prediction.ranks <= GAPS else 1.0
    axes.bar(np.arange(prediction.ranks), share, width=width, color=COMPUTE)
    axes.axhline(1.0, color="#7f7f7f", lw=1, ls="--")
    axes.locator_params(axis="x", integer=True, min_n_ticks=1)
    axes.set(xlabel="rank", ylabel=LOAD_LABEL, xlim=(-0.6, prediction.ranks - 0.4))
    return axes


def draw_memory(prediction: Prediction, axes: Axes | None) -> Axes:
    """Memory over time of the rank with the highest peak."""
    axes, used = new_axes(axes), usage(prediction)
    if used is None:
        raise RingloomError("the times of steps were not kept; simulate with record=True")
    label, unit = f"{prediction.name}, rank {used.rank}", _unit(used.peak)
    axes.step(1e3 * used.seconds, used.bytes / UNITS[unit], where="post", label=label)
    top = 1.1 * used.peak / UNITS[unit] or 1
    axes.set(xlabel="time (ms)", ylabel=f"memory ({unit})", ylim=(0, top))
    axes.legend(frameon=False, loc="lower right")
    return axes


def draw_traffic(prediction: Prediction, axes: Axes | None) -> Axes:
    """Bytes from rank to rank, of many from node to node, all steps together; a colour bar."""
    axes, table = new_axes(axes), traffic_of(plans_of(prediction))
    table, cell = by_nodes(table, prediction.ranks_per_node)
    end, unit = cell * len(table) - 0.5, _unit(table.max())
    image = axes.imshow(
        np.where(table > 0, table / UNITS[unit], np.nan),
        cmap="cividis_r",  # on white, the more the darker
        vmin=0,
        vmax=table.max() / UNITS[unit] or 1,
        extent=(-0.5, end, end, -0.5),
    )
    axes.figure.colorbar(image, ax=axes, label=f"sent ({unit})")
    axes.locator_params(integer=True, min_n_ticks=1)
    axes.set(**dict(zip(("xlabel", "ylabel"), link_labels(cell), strict=True)))
    return axes
