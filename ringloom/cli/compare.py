"""Schedules side by side: verified at full size, predicted, and run small with --check."""

from typing import Any

import click
from rich.console import Console

from planner.schedules import SCHEDULES
from ringloom.cli.options import (
    hardware_option,
    overlap_option,
    schedules_option,
    workload,
    workload_options,
)
from ringloom.cli.output import json_option, show
from ringloom.cli.progress import progress
from ringloom.comparison import compare
from ringloom.views.tables import bars, comparison_table


@click.command(help=__doc__)
@workload_options()
@hardware_option
@schedules_option(",".join(SCHEDULES))
@overlap_option
@click.option("--check", "checked", is_flag=True, help="Run each on real arrays, 64 tokens a rank.")
@json_option
def command(
    hardware: str, schedules: list[str], overlap: bool, checked: bool, as_json: bool, **given: Any
) -> int:
    work, ranks = workload(given)
    compared = compare(
        work,
        ranks,
        hardware,
        schedules,
        pass_=given["pass_"],
        overlap=overlap,
        checked=checked,
        track=progress,
    )
    rows = compared.rows
    notes = (
        "[dim]predicted: time, idle, exposed transfers, memory, and time over the lower bound of"
        " all plans;\nverified: the plan passed the verifier at that length"
    )
    if checked:
        notes += ";\nran: on real arrays of that length (float64, narrow heads), ok within 1e-12"
    notes += "[/]"
    document = {"rows": [row.as_dict() for row in rows], "why": compared.why}
    table, drawn = comparison_table(rows, checked), bars(rows, Console())
    show(as_json, document, compared.title, table, *drawn, notes, compared.why)
    return int(any(row.exact is False for row in rows))
