"""Show the work, traffic and memory of a schedule as formulas.

The command also shows idle time, buffers, speedups, and where one schedule overtakes another.

Example:
  ringloom formula zigzag
"""

from typing import Any

import click
from rich.text import Text

from ringloom.cli.output import show
from ringloom.planner.optional import import_optional
from ringloom.views.tables import faint, plain_table, titled


@click.command()
@click.argument("schedule")
def command(schedule: str) -> None:
    symbolic = import_optional("formulas", "ringloom.reproduce.formulas.symbolic")
    formulas, crossovers = symbolic.formulas(schedule), symbolic.crossovers()
    about = symbolic.about(schedule)
    document = {
        "schedule": schedule,
        "about": about,
        "symbols": symbolic.SYMBOLS,
        "formulas": {name: str(expr) for name, expr in formulas.items()},
        "crossovers": {
            name: {"value": str(value), "meaning": meaning}
            for name, (value, meaning) in crossovers.items()
        },
    }
    table, crossover_table = plain_table("", ""), plain_table("", "")
    for name, expr in formulas.items():
        for parity, form in symbolic.parities(expr).items():
            table.add_row(f"{symbolic.NAMES[name]}{parity and ', ' + parity}", _text(form))
    for name, (value, meaning) in crossovers.items():
        crossover_table.add_row(name, Text.assemble(f"{_text(value)}\n", faint(meaning)))
    symbols = "; ".join(f"{name} {meaning}" for name, meaning in symbolic.SYMBOLS.items())
    crossover_title = titled("crossovers between schedules")
    pictures = titled(schedule, f": {about}"), table, "", crossover_title, crossover_table
    show(document, *pictures, faint(symbols))


def _text(expr: Any) -> str:
    """Returns an expression with ^ for powers and spaces for products."""
    return str(expr).replace("**", "^").replace("*", " ")
