"""List the schedules with the data they send and their papers.

Example:
  ringloom schedules
"""

import click

from ringloom.cli.output import csv_option, show
from ringloom.planner.schedules import PLAIN_NAMES, SCHEDULES
from ringloom.views.tables import faint, plain_table


@click.command()
@csv_option
def command() -> None:
    rows = [
        {"name": s.name, "plain_name": PLAIN_NAMES.get(s.name)}
        | {"passes": ["forward", "backward"], "travels": s.travels, "path": s.path}
        | {"paper": s.paper, "parameters": s.parameters}
        for s in SCHEDULES.values()
    ]
    lines = (
        (s.name, s.travels, s.path, " ".join(s.parameters) or "-", s.paper)
        for s in SCHEDULES.values()
    )
    table = plain_table("schedule", "sends", "over", "parameters", "paper", rows=lines)
    table.columns[3].max_width = len("parameters")  # so that the table fits in 80 columns
    aliases = ", ".join(f"{plain} = {name}" for name, plain in PLAIN_NAMES.items())
    show({"schedules": rows}, table, faint(f"Other names: {aliases}"), rows=rows)
