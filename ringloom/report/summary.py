"""Schedules side by side: a table of numbers and bars that needs no script to be read."""

from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from ringloom.report import PAGE
from ringloom.rows import LABELS, Refusal, Row, cells
from ringloom.views.units import seconds

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
    whole: bool = True,
) -> str:
    """HTML of the comparison; every cell carries its number unrounded as data-value.

    Schedules that cannot run come last, with the reason; names may be `links`. Of one row, and
    where others are to come, none is the fastest.
    """
    slowest = max(row.makespan_s for row in rows) or 1.0
    best = min(row.makespan_s for row in rows) if whole and len(rows) > 1 else None
    html: str = TEMPLATES.get_template("summary.html").render(
        labels=LABELS,
        rows=[_row(row, slowest) | {"best": row.makespan_s == best} for row in rows],
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
        "words": f"{seconds(row.makespan_s)}, {1 - row.idle_fraction:.0%} busy,"
        f" {row.idle_fraction:.0%} idle, "
        + (row.bound_reason or f"lower bound {seconds(row.bound_s)}")
        + f"; bound of compute and memory {seconds(row.compute_bound_s)}" * row.computing,
    }
