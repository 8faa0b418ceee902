"""Schedules side by side: a table of numbers and bars that needs no script to be read."""

from collections.abc import Sequence
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from ringloom.report.assets import PAGE
from ringloom.rows import Row
from ringloom.views.columns import LABELS, cells
from ringloom.views.units import seconds

TEMPLATES = Environment(
    loader=FileSystemLoader(PAGE),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
)


def summary(rows: Sequence[Row]) -> str:
    """HTML of the comparison; every cell carries its number unrounded as data-value."""
    slowest = max(row.makespan_s for row in rows) or 1.0
    best = min(row.makespan_s for row in rows) if len(rows) > 1 else None  # of one, no best
    html: str = TEMPLATES.get_template("summary.html").render(
        labels=LABELS,
        rows=[_row(row, slowest) | {"best": row.makespan_s == best} for row in rows],
    )
    return html


def _row(row: Row, slowest: float) -> dict[str, Any]:
    share = 100 * row.makespan_s / slowest
    return {
        "schedule": row.schedule,
        "cells": cells(row),
        "busy": share * (1 - row.idle_fraction),
        "idle": share * row.idle_fraction,
        "exposed": 100 * row.exposed_comm_s / slowest,
        "bound": 100 * row.bound_s / slowest,
        "words": f"{seconds(row.makespan_s)}, {1 - row.idle_fraction:.0%} busy,"
        f" {row.idle_fraction:.0%} idle, waiting for transfers up to {seconds(row.exposed_comm_s)},"
        f" lower bound {seconds(row.bound_s)}",
    }
