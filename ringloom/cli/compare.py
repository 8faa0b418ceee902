"""Compare schedules: verified at full size, predicted, and executed small with --check."""

from typing import Any

import click
from rich.console import Console

from planner.schedules import SCHEDULES
from ringloom.cli.comparing import compared, comparison_options
from ringloom.cli.output import json_option, show
from ringloom.views.tables import bars, comparison_table


@click.command(help=__doc__)
@comparison_options(",".join(SCHEDULES))
@click.option(
    "--check",
    "checked",
    is_flag=True,
    help="Also execute each schedule numerically (64 tokens per rank).",
)
@json_option
def command(checked: bool, as_json: bool, **given: Any) -> int:
    comparison = compared(given, checked=checked)
    rows = comparison.rows
    notes = (
        "[dim]predicted: time, idle, exposed transfers, memory, and time over the lower bound of"
        " all plans;\nverified: the plan passed the verifier at that length"
    )
    if checked:
        notes += ";\nran: on real arrays of that length (float64, narrow heads), ok within 1e-12"
    notes += "[/]"
    document = {"rows": [row.as_dict() for row in rows], "why": comparison.why}
    table, drawn = comparison_table(rows, checked), bars(rows, Console())
    show(as_json, document, comparison.title, table, *drawn, notes, comparison.why)
    return int(any(row.exact is False for row in rows))
