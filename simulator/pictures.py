"""Pictures of a prediction on matplotlib axes; each draws on the axes that it is given.

Without axes, a new figure is made; the axes are returned, to be labelled or saved as one likes.
"""

from importlib import import_module
from typing import Any

import numpy as np

from planner.analysis.balance import loads
from planner.errors import RingloomError
from simulator.facts import legs, traffic, usage
from simulator.prediction import Prediction
from simulator.timeline import spans

Axes = Any  # of matplotlib, which counts as untyped
COMPUTE, MERGE, SEND, WAIT = "#0072B2", "#E69F00", "#009E73", "#D55E00"
LANES = {"compute": (0.05, 0.5, COMPUTE), "merge": (0.05, 0.5, MERGE), "send": (0.6, 0.3, SEND)}
MOST = 16  # ranks of a timeline, unless some are asked for
GIB, MIB = 1 << 30, 1 << 20


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


def representatives(prediction: Prediction, most: int = MOST) -> list[int]:
    """Returns all ranks where they are few; of many the busiest, the idlest and others between."""
    order = np.argsort(prediction.busy, kind="stable")
    places = np.linspace(0, prediction.ranks - 1, min(most, prediction.ranks)).round().astype(int)
    return sorted(order[places].tolist())


def draw_timeline(prediction: Prediction, axes: Axes | None, ranks: list[int] | None) -> Axes:
    """A row per rank: above what it computes, merges and waits for, below what it sends."""
    axes, shown = new_axes(axes), representatives(prediction) if ranks is None else ranks
    row = {rank: number for number, rank in enumerate(shown)}
    bars: dict[tuple[int, str], list[tuple[float, float]]] = {}
    for leg in legs(prediction):
        for span in spans(leg.timeline):
            if span.rank in row and span.stream in LANES:
                place = bars.setdefault((span.rank, span.stream), [])
                place.append((1e3 * (span.start + leg.offset), 1e3 * (span.end - span.start)))
        if leg.timeline.steps is not None:
            begin, start = leg.timeline.begin, leg.timeline.attend_start
            for rank in shown:
                here = np.flatnonzero(start[:, rank] > begin[:, rank])
                since = 1e3 * (begin[here, rank] + leg.offset)
                takes = 1e3 * (start[here, rank] - begin[here, rank])
                bars.setdefault((rank, "wait"), []).extend(zip(since, takes, strict=True))
    for (rank, stream), pieces in bars.items():
        bottom, height, colour = LANES.get(stream, (0.05, 0.5, WAIT))
        axes.broken_barh(pieces, (row[rank] + bottom, height), facecolors=colour, lw=0)
    for stream, colour in {**{name: lane[2] for name, lane in LANES.items()}, "wait": WAIT}.items():
        axes.broken_barh([], (0, 0), facecolors=colour, label=stream)
    axes.set_xlim(0, 1e3 * prediction.makespan or 1.0)
    axes.set_ylim(len(shown), 0)
    axes.set_yticks([n + 0.5 for n in range(len(shown))], list(map(str, shown)))
    few = len(shown) < prediction.ranks
    axes.set(
        xlabel="time (ms)", ylabel=f"{len(shown)} of {prediction.ranks} ranks" if few else "rank"
    )
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=4, frameon=False)
    return axes


def draw_load(prediction: Prediction, axes: Axes | None) -> Axes:
    """Work of each rank over the average: a bar per rank."""
    axes = new_axes(axes)
    work = sum(loads(leg.timeline.plan).sum(axis=0) for leg in legs(prediction))
    share = np.asarray(work) / (np.mean(work) or 1.0) * np.ones(prediction.ranks)
    axes.bar(np.arange(prediction.ranks), share, width=0.8, color=COMPUTE)
    axes.axhline(1.0, color="#7f7f7f", lw=1, ls="--")
    axes.set(xlabel="rank", ylabel="query-key pairs / average", xlim=(-0.6, prediction.ranks - 0.4))
    return axes


def draw_memory(prediction: Prediction, axes: Axes | None) -> Axes:
    """Memory over time of the rank with the highest peak."""
    axes, used = new_axes(axes), usage(prediction)
    if used is None:
        raise RingloomError("the times of steps were not kept; simulate with record=True")
    label = f"{prediction.name}, rank {used.rank}"
    axes.step(1e3 * used.seconds, used.bytes / GIB, where="post", label=label)
    axes.set(xlabel="time (ms)", ylabel="memory (GiB)", ylim=(0, 1.1 * used.peak / GIB))
    axes.legend(frameon=False, loc="lower right")
    return axes


def draw_traffic(prediction: Prediction, axes: Axes | None) -> Axes:
    """Bytes from rank to rank, all steps together, with a colour bar."""
    axes = new_axes(axes)
    table = np.sum([traffic(leg.timeline.plan) for leg in legs(prediction)], axis=0) / MIB
    image = axes.imshow(np.where(table > 0, table, np.nan), cmap="cividis", vmin=0)
    axes.figure.colorbar(image, ax=axes, label="MiB")
    axes.set(xlabel="to rank", ylabel="from rank")
    return axes
