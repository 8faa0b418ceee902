"""Schedules side by side: a table of numbers and bars that needs no script to be read."""

from collections.abc import Sequence
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from ringloom.report.assets import PAGE
from ringloom.rows import Row
from ringloom.views.units import seconds, size

TEMPLATES = Environment(
    loader=FileSystemLoader(PAGE),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
)
COLUMNS = (
    ("time", "makespan_s", seconds),
    ("vs ring", "speedup_vs_ring", lambda x: f"{x:.2f}x"),
    ("idle", "idle_fraction", lambda x: f"{x:.0%}"),
    ("exposed", "exposed_comm_s", seconds),
    ("over bound", "bound_ratio", lambda x: f"{x:.2f}" if x < 1000 else ">999"),
    ("sent", "max_bytes_sent", size),
    ("memory", "peak_bytes", size),
)


def summary(rows: Sequence[Row]) -> str:
    """HTML of the comparison; every cell carries its number unrounded as data-value."""
    slowest = max(row.makespan_s for row in rows) or 1.0
    best = min(row.makespan_s for row in rows)
    html: str = TEMPLATES.get_template("summary.html").render(
        rows=[_row(row, slowest) | {"best": row.makespan_s == best} for row in rows]
    )
    return html


def _row(row: Row, slowest: float) -> dict[str, Any]:
    share = 100 * row.makespan_s / slowest
    cells = [
        {
            "label": label,
            "field": field,
            "value": repr(value := getattr(row, field)),
            "text": f(value),
        }
        for label, field, f in COLUMNS
    ]
    return {
        "schedule": row.schedule,
        "cells": cells,
        "busy": share * (1 - row.idle_fraction),
        "idle": share * row.idle_fraction,
        "exposed": 100 * row.exposed_comm_s / slowest,
        "bound": 100 * row.bound_s / slowest,
        "words": f"{seconds(row.makespan_s)}, {1 - row.idle_fraction:.0%} busy,"
        f" {row.idle_fraction:.0%} idle, waiting for transfers up to {seconds(row.exposed_comm_s)},"
        f" lower bound {seconds(row.bound_s)}",
    }
