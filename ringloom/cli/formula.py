"""Show the costs of a schedule as formulas: work, traffic, memory.

Also shows idle shares, buffers and speedups, and where one schedule overtakes another.

Example:
  ringloom formula zigzag
"""

from typing import Any

import click
from rich.text import Text

from ringloom.cli.output import show
from ringloom.planner.optional import needing
from ringloom.views.tables import faint, plain_table, titled


@click.command()
@click.argument("schedule")
def command(schedule: str) -> None:
    symbolic = needing("formulas", "ringloom.reproduce.formulas.symbolic")
    chosen, crossovers = symbolic.formulas(schedule), symbolic.crossovers()
    about = symbolic.about(schedule)
    document = {
        "schedule": schedule,
        "about": about,
        "symbols": symbolic.SYMBOLS,
        "formulas": {name: str(expr) for name, expr in chosen.items()},
        "crossovers": {
            name: {"value": str(value), "meaning": meaning}
            for name, (value, meaning) in crossovers.items()
        },
    }
    table, ends = plain_table("", ""), plain_table("", "")
    for name, expr in chosen.items():
        for parity, form in symbolic.parities(expr).items():
            table.add_row(f"{symbolic.NAMES[name]}{parity and ', ' + parity}", _text(form))
    for name, (value, meaning) in crossovers.items():
        ends.add_row(name, Text.assemble(f"{_text(value)}\n", faint(meaning)))
    symbols = "; ".join(f"{name} {meaning}" for name, meaning in symbolic.SYMBOLS.items())
    head, below = titled(schedule, f": {about}"), faint(symbols)
    between = "", titled("crossovers between schedules")
    show(document, head, table, *between, ends, below)


def _text(expr: Any) -> str:
    """Returns an expression with ^ for powers and spaces for products."""
    return str(expr).replace("**", "^").replace("*", " ")
