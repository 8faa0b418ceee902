"""Plots of a prediction on matplotlib axes, and the colours and labels of all pictures."""

from collections import defaultdict
from typing import Any

import numpy as np

from ringloom.planner.errors import RingloomError
from ringloom.planner.optional import import_optional
from ringloom.simulator.facts import (
    bars_of,
    by_nodes,
    over_average,
    plans_of,
    traffic_of,
    usage,
    work_of,
)
from ringloom.simulator.timeline import Floats, Run

Axes = Any  # matplotlib axes: the library has no types
COMPUTE, MERGE, SEND, WAIT = "#0072B2", "#E69F00", "#009E73", "#D55E00"
LANES = {
    "compute": (0.05, 0.5, COMPUTE),
    "merge": (0.05, 0.5, MERGE),
    "wait": (0.2, 0.2, WAIT),
    "send": (0.6, 0.3, SEND),
}
LOAD_LABEL = "query-key pairs / average"
FEW = 16  # ranks that a picture shows by default
GAPS = 64  # ranks up to which bars have gaps
UNITS = {"GiB": 1 << 30, "MiB": 1 << 20, "KiB": 1 << 10, "B": 1}


def new_axes(axes: Axes | None) -> Axes:
    """Returns the axes, or those of a new figure; raises RingloomError without matplotlib."""
    if axes is not None:
        return axes
    _, axes = import_optional("plots", "matplotlib.pyplot").subplots(layout="constrained")
    return axes


def _unit(most: int) -> str:
    """Returns the largest unit that is not larger than a size in bytes."""
    return next((unit for unit, scale in UNITS.items() if most >= scale), "B")


def ranks_label(shown: int, ranks: int) -> str:
    """Returns the label of an axis that shows all ranks or some of them."""
    return f"{shown} of {ranks} ranks" if shown < ranks else "rank"


def link_labels(cell: int) -> tuple[str, str]:
    """Returns the labels of both axes of a table of links with `cell` ranks per cell."""
    cells = f", {cell} to a cell" if cell > 1 else ""
    return f"to rank{cells}", f"from rank{cells}"


class Drawn(Run):
    """A run with plots, which take matplotlib axes (default: a new figure) and return them."""

    ranks_per_node: int
    busy: Floats  # [ranks]

    def representatives(self, most: int = FEW) -> list[int]:
        """Returns at most `most` ranks: all, or the busiest, the idlest, the median and first ranks
        of evenly spread nodes."""
        if self.ranks <= most:
            return list(range(self.ranks))
        order = np.argsort(self.busy, kind="stable")
        chosen = set(order[[0, self.ranks // 2, -1]].tolist())
        firsts = np.arange(0, self.ranks, self.ranks_per_node)
        spread = np.linspace(0, len(firsts) - 1, min(len(firsts), most - len(chosen))).astype(int)
        return sorted(chosen | set(firsts[spread].tolist()))

    def plot_timeline(self, axes: Axes = None, *, ranks: list[int] | None = None) -> Axes:
        """Draws a row per rank: compute, merges and waits above, sends below.

        By default, draws at most 16 ranks (see `representatives`).
        """
        axes, shown = new_axes(axes), self.representatives() if ranks is None else ranks
        pieces = defaultdict[tuple[int, str], list[tuple[float, float]]](list)
        for bar in bars_of(self, shown):
            pieces[bar.rank, bar.stream].append((1e3 * bar.start, 1e3 * (bar.end - bar.start)))
        for row, rank in enumerate(shown):
            for stream, (bottom, height, colour) in LANES.items():
                label = "" if row else stream
                place = (row + bottom, height)
                axes.broken_barh(pieces[rank, stream], place, facecolors=colour, lw=0, label=label)
        axes.set_xlim(0, 1e3 * self.makespan or 1.0)
        axes.set_ylim(len(shown), 0)
        axes.set_yticks([n + 0.5 for n in range(len(shown))], list(map(str, shown)))
        axes.set(xlabel="time (ms)", ylabel=ranks_label(len(shown), self.ranks))
        axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=4, frameon=False)
        return axes

    def plot_load(self, axes: Axes = None) -> Axes:
        """Draws each rank's query-key pairs divided by the average."""
        axes = new_axes(axes)
        share = over_average(work_of(plans_of(self)))
        width = 0.8 if self.ranks <= GAPS else 1.0
        axes.bar(np.arange(self.ranks), share, width=width, color=COMPUTE)
        axes.axhline(1.0, color="#7f7f7f", lw=1, ls="--")
        axes.locator_params(axis="x", integer=True, min_n_ticks=1)
        axes.set(xlabel="rank", ylabel=LOAD_LABEL, xlim=(-0.6, self.ranks - 0.4))
        return axes

    def plot_memory(self, axes: Axes = None) -> Axes:
        """Draws the memory of the rank with the highest peak over time."""
        axes, used = new_axes(axes), usage(self)
        if used is None:
            raise RingloomError("the times of steps were not kept; simulate with record=True")
        label, unit = f"{self.name}, rank {used.rank}", _unit(used.peak)
        axes.step(1e3 * used.seconds, used.bytes / UNITS[unit], where="post", label=label)
        top = 1.1 * used.peak / UNITS[unit] or 1
        axes.set(xlabel="time (ms)", ylabel=f"memory ({unit})", ylim=(0, top))
        axes.legend(frameon=False, loc="lower right")
        return axes

    def plot_traffic(self, axes: Axes = None) -> Axes:
        """Draws the bytes from rank to rank, or from node to node if there are many ranks."""
        axes, table = new_axes(axes), traffic_of(plans_of(self))
        table, cell = by_nodes(table, self.ranks_per_node)
        end, unit = cell * len(table) - 0.5, _unit(table.max())
        image = axes.imshow(
            np.where(table > 0, table / UNITS[unit], np.nan),
            cmap="cividis_r",  # darker cells have more bytes
            vmin=0,
            vmax=table.max() / UNITS[unit] or 1,
            extent=(-0.5, end, end, -0.5),
        )
        axes.figure.colorbar(image, ax=axes, label=f"sent ({unit})")
        axes.locator_params(integer=True, min_n_ticks=1)
        axes.set(**dict(zip(("xlabel", "ylabel"), link_labels(cell), strict=True)))
        return axes
