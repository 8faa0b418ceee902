"""Show the costs of a schedule in symbols: work, traffic, memory.

Idle shares, slots and speedups too, and where one schedule overtakes another.

Example:
  ringloom formula zigzag
"""

from typing import Any

import click

from ringloom.cli.output import json_option, show
from ringloom.optional import needing
from ringloom.views.tables import plain_table

NAMES = {
    "rounds": "rounds",
    "pairs": "pairs on the critical path",
    "all_pairs": "pairs in all",
    "idle_cells": "idle share, cells of the schedule",
    "idle_cells_of_square": "idle share, cells over P^2",
    "idle_areas": "idle share, areas",
    "forward_elements": "forward traffic, elements",
    "backward_elements": "backward traffic, elements",
    "forward_bytes": "forward traffic, bytes",
    "backward_bytes": "backward traffic, bytes",
    "slots_kv": "slots of KV",
    "slots_q": "slots of Q",
    "speedup": "speedup over one rank",
    "speedup_over_ring": "speedup over ring",
}


@click.command()
@click.argument("schedule")
@json_option
def command(schedule: str, as_json: bool) -> None:
    symbolic = needing("formulas", "ringloom.reproduce.formulas.symbolic")
    chosen, crossovers = symbolic.formulas(schedule), symbolic.crossovers()
    document = {
        "schedule": schedule,
        "about": chosen.about,
        "symbols": symbolic.SYMBOLS,
        "formulas": {name: str(expr) for name, expr in chosen.expressions().items()},
        "crossovers": {
            each.name: {"value": str(each.value), "meaning": each.meaning} for each in crossovers
        },
    }
    table, ends = plain_table("", ""), plain_table("", "")
    for name, expr in chosen.expressions().items():
        for parity, form in symbolic.parities(expr).items():
            table.add_row(f"{NAMES[name]}{parity and ', ' + parity}", _text(form))
    for each in crossovers:
        ends.add_row(each.name, f"{_text(each.value)}\n[dim]{each.meaning}[/]")
    symbols = "; ".join(f"{name} {meaning}" for name, meaning in symbolic.SYMBOLS.items())
    head, below = f"[bold]{schedule}[/]: {chosen.about}", f"[dim]{symbols}[/]"
    between = "", "[bold]crossovers, whatever the schedule[/]"
    show(as_json, document, head, table, *between, ends, below)


def _text(expr: Any) -> str:
    """An expression as people write it: powers with ^, spaces for products."""
    return str(expr).replace("**", "^").replace("*", " ")
