"""Work, traffic, idle shares, memory and speedup of a schedule in symbols."""

from typing import TYPE_CHECKING, Any

import click

from ringloom.cli.output import json_option, show
from ringloom.views.tables import plain_table

if TYPE_CHECKING:
    from planner.formulas.symbolic import Formulas

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


@click.command(help=__doc__)
@click.argument("schedule")
@json_option
def command(schedule: str, as_json: bool) -> None:
    from planner.formulas.symbolic import (  # sympy takes a moment to load
        SYMBOLS,
        crossovers,
        formulas,
    )

    found = formulas(schedule)
    document = {
        "schedule": schedule,
        "about": found.about,
        "symbols": SYMBOLS,
        "formulas": {name: str(expr) for name, expr in found.expressions().items()},
        "crossovers": {
            each.name: {"value": str(each.value), "meaning": each.meaning} for each in crossovers()
        },
    }
    show(as_json, document, *_pictures(found))


def _pictures(found: "Formulas") -> list[Any]:
    from planner.formulas.symbolic import SYMBOLS, crossovers, parities

    table = plain_table("", "")
    table.show_header = False
    for name, expr in found.expressions().items():
        for parity, form in parities(expr).items():
            table.add_row(f"{NAMES[name]}{parity and ', ' + parity}", _text(form))
    ends = plain_table("", "")
    ends.show_header = False
    for each in crossovers():
        ends.add_row(each.name, f"{_text(each.value)}\n[dim]{each.meaning}[/]")
    symbols = "; ".join(f"{name} {meaning}" for name, meaning in SYMBOLS.items())
    head = f"[bold]{found.schedule}[/]: {found.about}"
    return [
        head,
        table,
        "",
        "[bold]crossovers, whatever the schedule[/]",
        ends,
        f"[dim]{symbols}[/]",
    ]


def _text(expr: Any) -> str:
    """An expression as people write it: powers with ^, spaces for products."""
    return str(expr).replace("**", "^").replace("*", " ")
