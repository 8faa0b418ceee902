"""Comparisons in notebooks: as an HTML table, as a frame of pandas or polars, as bars."""

from collections.abc import Sequence
from html import escape
from importlib import import_module
from typing import Any

from planner.errors import RingloomError
from ringloom.rows import LABELS, Refusal, Row, cells, flat
from simulator.pictures import COMPUTE, new_axes

Rows = Sequence[Row]


def html(title: str, rows: Rows, refused: Sequence[Refusal], reason: str) -> str:
    """The table as HTML that takes its looks from the page around it."""
    head = "".join(f"<th>{label}</th>" for label in ("schedule", *LABELS))
    lines = [
        f"<tr><th>{escape(row.schedule)}</th>"
        + "".join(f"<td>{cell.text}</td>" for cell in cells(row))
        + "</tr>"
        for row in rows
    ]
    lines += [
        f'<tr><th>{escape(one.schedule)}</th><td colspan="{len(LABELS)}">cannot run:'
        f" {escape(one.reason)}</td></tr>"
        for one in refused
    ]
    caption = f"<caption>{escape(title)}</caption>"
    body = "".join(lines)
    return f"<table>{caption}<tr>{head}</tr>{body}</table><p>{escape(reason)}</p>"


def data_frame(library: str, records: list[dict[str, Any]]) -> Any:
    """A data frame of the rows; raises RingloomError where the library is not installed."""
    try:
        return import_module(library).DataFrame(list(map(flat, records)))
    except ModuleNotFoundError:
        message = f"{library} is not installed: pip install {library}, or take as_rows()"
        raise RingloomError(message) from None


def bars(rows: Rows, axes: Any) -> Any:
    """Time of each schedule, the fastest on top: busy, and idle in a lighter colour."""
    axes = new_axes(axes)
    names, times = [row.schedule for row in rows], [1e3 * row.makespan_s for row in rows]
    busy = [1e3 * row.makespan_s * (1 - row.idle_fraction) for row in rows]
    axes.barh(names, times, color="#b8c0c8", label="idle (mean of all ranks)")
    axes.barh(names, busy, color=COMPUTE, label="busy")
    bound = 1e3 * max((row.bound_s for row in rows), default=0.0)
    axes.axvline(bound, color=axes.xaxis.label.get_color(), lw=1.5, label="lower bound")
    axes.invert_yaxis()
    axes.set(xlabel="time (ms)")
    axes.legend(frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3)
    return axes
