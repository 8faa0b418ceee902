"""Answers of commands: one JSON object for programs, pictures for people, files for both."""

import csv
import json
from io import StringIO
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console

from planner.errors import RingloomError

json_option = click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
CSV = "ringloom.csv"  # in a context: rows are asked for


def _remember(context: click.Context, _: click.Parameter, chosen: bool) -> None:
    context.meta[CSV] = chosen


csv_option = click.option(
    "--csv", is_flag=True, expose_value=False, callback=_remember, help="The table as CSV."
)


def show(
    as_json: bool,
    document: dict[str, Any],
    *pictures: Any,
    rows: list[dict[str, Any]] | None = None,
) -> None:
    """The one JSON object, or the rows of its table as CSV, or the pictures of it."""
    context = click.get_current_context(silent=True)
    as_csv = rows is not None and context is not None and context.meta.get(CSV, False)
    if as_json and as_csv:
        raise click.UsageError("either --json or --csv")
    if as_json:
        click.echo(json.dumps(document, default=_plain))
    elif as_csv and rows is not None:
        click.echo(_as_csv(rows), nl=False)
    else:
        console = Console(highlight=False)
        for picture in pictures:
            console.print(picture)


def _as_csv(rows: list[dict[str, Any]]) -> str:
    """Rows under a line of their names; a dictionary in a row makes a column of each entry."""
    flat = [
        {
            f"{name}.{key}" if key else name: entry
            for name, value in row.items()
            for key, entry in (value if isinstance(value, dict) else {"": value}).items()
        }
        for row in rows
    ]
    file = StringIO()
    writer = csv.DictWriter(file, list(dict.fromkeys(name for row in flat for name in row)))
    writer.writeheader()
    writer.writerows(flat)
    return file.getvalue()


def write(path: str, text: str) -> None:
    """Write a file; raises RingloomError where that cannot be."""
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise RingloomError(f"cannot write {path}: {error.strerror}") from None


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else str(value)
