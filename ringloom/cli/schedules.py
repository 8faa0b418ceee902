"""List the schedules, what they move, and their papers.

Example:
  ringloom schedules
"""

import click

from ringloom.cli.output import csv_option, show
from ringloom.planner.schedules import SCHEDULES
from ringloom.views.tables import plain_table


@click.command()
@csv_option
def command() -> None:
    rows = [
        {"name": s.name, "passes": ["forward", "backward"], "travels": s.travels}
        | {"path": s.path, "paper": s.paper, "parameters": s.parameters}
        for s in SCHEDULES.values()
    ]
    lines = (
        (s.name, s.travels, s.path, " ".join(s.parameters) or "-", s.paper)
        for s in SCHEDULES.values()
    )
    table = plain_table("schedule", "travels", "over", "parameters", "from", rows=lines)
    table.columns[3].max_width = len("parameters")  # so that no name is cut off in 80 columns
    show({"schedules": rows}, table, rows=rows)
