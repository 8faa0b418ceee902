"""Renders the table of schedules: numbers and bars that need no JavaScript."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from ringloom.recommendation import recommend
from ringloom.report import PAGE
from ringloom.rows import COLUMNS, Refusal, Row, cells
from ringloom.views.units import seconds

MEANINGS = defaultdict(  # of columns whose label needs an explanation
    str,
    exposed_comm_s="longest time that a rank waits for transfers",
    max_bytes_sent="bytes sent by the busiest rank",
    peak_bytes="memory of the plan's tensors on the worst rank",
    bound_ratio="time divided by the lower bound",
    compute_bound_ratio="time divided by the bound of compute and memory alone",
)
TEMPLATES = Environment(
    loader=FileSystemLoader(PAGE),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
)


def summary(
    rows: Sequence[Row],
    refused: Sequence[Refusal] = (),
    links: Mapping[str, str] | None = None,
    complete: bool = True,
) -> str:
    """Returns the comparison as HTML; each cell has its unrounded number as data-value.

    Schedules that cannot run come last, with the reason; `links` maps schedules to addresses. A
    badge marks the fastest schedule, or all schedules that are too close to call. There is no badge
    for a single row, or as long as the table is not `complete`.
    """
    slowest = max(row.makespan_s for row in rows) or 1.0
    advice = recommend(rows)
    fastest = {advice.schedule, *advice.close_to} if complete and len(rows) > 1 else set[str]()
    badge = "tied" if len(fastest) > 1 else "fastest"
    html: str = TEMPLATES.get_template("summary.html").render(
        labels=[(label, MEANINGS[field]) for label, field, _ in COLUMNS],
        meanings=MEANINGS,
        rows=[
            _row(row, slowest)
            | {
                "best": bool(fastest) and row.schedule == advice.schedule,
                "badge": badge if row.schedule in fastest else "",
            }
            for row in rows
        ],
        refused=refused,
        links=links or {},
    )
    return html


def _row(row: Row, slowest: float) -> dict[str, Any]:
    share, bound = 100 * row.makespan_s / slowest, 100 * row.bound_s / slowest
    return {
        "schedule": row.schedule,
        "cells": cells(row),
        "busy": share * (1 - row.idle_fraction),
        "idle": share * row.idle_fraction,
        "bound": None if row.bound_ratio is None else bound,
        "value": f"{seconds(row.makespan_s)}, {row.idle_fraction:.0%} idle",
        "words": f"{seconds(row.makespan_s)}, {1 - row.idle_fraction:.0%} busy,"
        f" {row.idle_fraction:.0%} idle, "
        + (row.bound_reason or f"lower bound {seconds(row.bound_s)}")
        + f"; bound of compute and memory {seconds(row.compute_bound_s)}"
        * row.has_compute_bound_only,
    }
