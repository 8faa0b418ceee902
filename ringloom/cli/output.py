"""Answers of commands: one JSON object for programs, pictures for people, files for both."""

import json
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console

from planner.errors import RingloomError

json_option = click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")


def show(as_json: bool, document: dict[str, Any], *pictures: Any) -> None:
    """The one JSON object, or the pictures of it."""
    if as_json:
        click.echo(json.dumps(document, default=_plain))
        return
    console = Console(highlight=False)
    for picture in pictures:
        console.print(picture)


def write(path: str, text: str) -> None:
    """Write a file; raises RingloomError where that cannot be."""
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise RingloomError(f"cannot write {path}: {error.strerror}") from None


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else str(value)
